// The cancellation that the work of a thread ends, which kernels look at between their blocks.
#pragma once
#include <cstdint>

extern "C" {

// Asks whoever wants the work's result, from any thread: not 0 if the work is to end. Null if nobody can end it.
struct tw_cancellation {
  int32_t (*is_asked)(const void* of);
  const void* of;
};

// Sets the cancellation that counts for this thread's work from now on; returns the one before.
tw_cancellation tw_cancellation_exchange(tw_cancellation cancellation) noexcept;

}

// Thrown by work that ended because of a cancellation; nothing that it wrote means anything.
struct Cancelled {};

// The cancellation of the thread that makes it, to be looked at by all threads that work for it.
class Cancellation {
 public:
  Cancellation() noexcept;
  bool is_asked() const noexcept { return cancellation_.is_asked != nullptr && cancellation_.is_asked(cancellation_.of) != 0; }
  void check() const {
    if (is_asked()) throw Cancelled{};
  }

 private:
  tw_cancellation cancellation_;
};
