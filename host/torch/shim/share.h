// Work that threads take piece by piece: one that another program slows down holds none of the others up.
#pragma once
#include <ATen/Parallel.h>

#include <algorithm>
#include <atomic>
#include <cstdint>

// Calls `work(index)` for each index below `count`, on all threads, and then `leave()` on each of them.
template <typename Work, typename Leave>
void share_out(int64_t count, Work&& work, Leave&& leave) {
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    for (int64_t index = next++; index < count; index = next++) work(index);
    leave();
  });
}
