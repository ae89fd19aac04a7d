// Memory accounting that libtorch keeps to its C++ side. Every function returns 0, or 1 with the reason in `error`.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct tw_memory {
  uint64_t in_use;       // bytes that tensors hold now
  uint64_t peak;         // the most that they held since the last reset
  uint64_t held;         // bytes taken from the system or driver, in use or not
  uint64_t allocations;  // requests served
  uint64_t system;       // requests that had to ask the system or driver
};

// Puts the counting allocator behind every CPU tensor made from now on; again is harmless.
int tw_cpu_install(char* error, size_t error_length) noexcept;
// No CPU allocation may raise the bytes in use above this; 0 is no limit.
void tw_cpu_set_limit(uint64_t bytes) noexcept;
void tw_cpu_memory(tw_memory* out) noexcept;
void tw_cpu_reset_peak() noexcept;

// The same for a CUDA or ROCm device, from libtorch's caching allocator.
int tw_gpu_memory(int device, tw_memory* out, char* error, size_t error_length) noexcept;
int tw_gpu_reset_peak(int device, char* error, size_t error_length) noexcept;
int tw_gpu_empty_cache(char* error, size_t error_length) noexcept;
int tw_gpu_free_and_total(int device, uint64_t* free_bytes, uint64_t* total_bytes, char* error, size_t error_length) noexcept;
}
