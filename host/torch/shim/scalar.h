// Operators that take numbers. tch's own forget the error of a failed one, and panic.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

enum tw_scalar_operator {
  TW_ADD = 0,        // tensor + first
  TW_MULTIPLY = 1,   // tensor · first
  TW_MULTIPLY_ = 2,  // the same in place
  TW_CLAMP = 3,      // between first and second
  TW_CLAMP_MIN_ = 4, // at least first, in place
  TW_FILL_ = 5,      // every value first
  TW_DIVIDE = 6,     // tensor / first
  TW_LINE = 7,       // tensor · first + second
};

// The result is a new at::Tensor, which is the caller's to free.
int tw_with_scalar(int operation, const void* tensor, double first, double second, void** result, char* error,
                   size_t error_length) noexcept;

// The square root of the sum of squares along one axis, which stays with extent 1; added up in f32.
int tw_length(const void* tensor, int64_t axis, void** result, char* error, size_t error_length) noexcept;

// The largest magnitude, without axes; in f32.
int tw_largest(const void* tensor, void** result, char* error, size_t error_length) noexcept;

}  // extern "C"
