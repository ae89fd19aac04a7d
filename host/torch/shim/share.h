// Work that threads take piece by piece: one that another program slows down holds none of the others up.
#pragma once
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "cancel.h"

// Calls `work(index)` for each index below `count`, on all threads. The thread's cancellation is looked at before each `block` of them.
template <typename Work>
void each_in_blocks(int64_t count, int64_t block, Work&& work) {
  const Cancellation cancellation;
  at::parallel_for(0, count, block, [&](int64_t begin, int64_t end) {
    for (int64_t first = begin; first < end && !cancellation.is_asked(); first += block)
      for (int64_t index = first; index < std::min(end, first + block); ++index) work(index);
  });
  cancellation.check();
}

// Calls `work(index)` for each index below `count` until it is cancelled, on all threads, and then `leave()` on each of them.
template <typename Work, typename Leave>
void share_out(int64_t count, const Cancellation& cancellation, Work&& work, Leave&& leave) {
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    for (int64_t index = next++; index < count && !cancellation.is_asked(); index = next++) work(index);
    leave();
  });
  cancellation.check();
}
