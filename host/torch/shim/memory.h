// What of memory libtorch keeps to its C++ side. Functions return 0, or 1 with the reason in `error`.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct tw_memory {
  uint64_t in_use;       // bytes that tensors hold now
  uint64_t peak;         // the most that they held since the last reset
  uint64_t held;         // bytes taken from the driver, in use or not
  uint64_t allocations;  // requests served
  uint64_t system;       // requests that had to ask the driver
  double fragmentation;  // of what is held, the part that is free but can't be handed back: 0 to 1
};

// Serves a request for `bytes`, which is not 0: writes its address and returns null, or returns why not.
typedef const char* (*tw_allocate)(uint64_t bytes, void** data);
// Frees it; 0 where `data` is none of its own, or null.
typedef int (*tw_release)(void* data);

// Puts an allocator behind every CPU tensor made from now on; again is harmless. Neither function may unwind.
int tw_cpu_install(tw_allocate allocate, tw_release release, char* error, size_t error_length) noexcept;

// Of a CUDA or ROCm device, from libtorch's caching allocator.
int tw_gpu_memory(int device, tw_memory* out, char* error, size_t error_length) noexcept;
int tw_gpu_reset_peak(int device, char* error, size_t error_length) noexcept;
int tw_gpu_empty_cache(char* error, size_t error_length) noexcept;
int tw_gpu_free_and_total(int device, uint64_t* free_bytes, uint64_t* total_bytes, char* error, size_t error_length) noexcept;
// The part of a device's memory that its allocator may hold, from 0 to 1. Fails if libtorch's allocator is not of the kind that
// this is built for.
int tw_gpu_fraction(int device, double* fraction, char* error, size_t error_length) noexcept;
int tw_gpu_set_fraction(int device, double fraction, char* error, size_t error_length) noexcept;
}
