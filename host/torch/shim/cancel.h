// The wish that the work of a thread ends, which kernels look at between their blocks.
#pragma once
#include <cstdint>

extern "C" {

// Asks whoever wants the work's result, from any thread: not 0 if the work is to end. Null if nobody can end it.
struct tw_wish {
  int32_t (*is_given)(const void* of);
  const void* of;
};

// Sets the wish that counts for this thread's work from now on; returns the one before.
tw_wish tw_wish_exchange(tw_wish wish) noexcept;

}

// Thrown by work that ended because of a wish; nothing that it wrote means anything.
struct Cancelled {};

// The wish of the thread that makes it, to be looked at by all threads that work for it.
class Wish {
 public:
  Wish() noexcept;
  bool is_given() const noexcept { return wish_.is_given != nullptr && wish_.is_given(wish_.of) != 0; }
  void check() const {
    if (is_given()) throw Cancelled{};
  }

 private:
  tw_wish wish_;
};
