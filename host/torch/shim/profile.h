// Events of libtorch's profiler, Kineto: its interface changes between releases of libtorch, and nothing but this file knows it.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// The kinds of events.
enum tw_event_kind {
  TW_OPERATOR = 0,  // an operator of libtorch, or a range of ours
  TW_CALL = 1,      // a call of a GPU's runtime
  TW_KERNEL = 2,
  TW_TRANSFER = 3,  // a copy or a fill by a GPU
};

typedef struct {
  const char* name;
  size_t name_length;
  int32_t kind;
  int32_t device;      // a GPU's number
  uint64_t track;      // a thread of the host, or a stream of the GPU
  uint64_t start;      // nanoseconds
  uint64_t end;
  uint64_t id;         // an operator's own number
  uint64_t launched_by;
} tw_event;

// Records what this thread runs, and what the GPU does if `gpu`. One recording at a time.
int tw_profile_begin(int gpu, char* error, size_t error_length) noexcept;

// Ends the recording on the thread that began it, and gives each event to `each`, in no order. Without `each` they are dropped.
int tw_profile_end(void (*each)(const tw_event* event, void* of), void* of, char* error, size_t error_length) noexcept;

// Begins a range on this thread: an event of this name. Null if nothing is recorded.
void* tw_range_begin(const char* name, size_t length) noexcept;

// Ends the range that began last on this thread.
void tw_range_end(void* range) noexcept;
}
