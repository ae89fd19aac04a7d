// Random numbers by a generator of their own. tch's seed is the process's, also that of GPUs, and its failure ends the program.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Standard normal values in f32 on the CPU. The result is a new at::Tensor, which is the caller's to free.
int tw_noise(uint64_t seed, const int64_t* shape, int64_t axes, void** result, char* error, size_t error_length) noexcept;

}  // extern "C"
