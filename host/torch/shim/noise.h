// Random numbers by a generator of their own. tch's seed is the process's, also that of GPUs, and its failure ends the program.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A generator of random numbers on the CPU; it is the caller's to destroy.
int tw_generator_create(uint64_t seed, void** generator, char* error, size_t error_length) noexcept;
void tw_generator_destroy(void* generator) noexcept;

// The generator's next standard normal values, in f32. The result is a new at::Tensor, which is the caller's to free.
int tw_generator_draw(void* generator, const int64_t* shape, int64_t axes, void** result, char* error,
                      size_t error_length) noexcept;

}  // extern "C"
