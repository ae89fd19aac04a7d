// Products with a matrix that stays packed, in integers of 8 bits.
#pragma once
#include "product.h"

extern "C" {

// 1 if this processor multiplies bytes and sums them in 32 bits (AVX-512 VNNI).
int tw_int8_available() noexcept;

// 1 if matrices of this packing can be multiplied so. Their columns must be a multiple of 32, and `groups` must be empty.
int tw_int8_packing(int32_t packing) noexcept;

// Bytes that a product works in, on all threads together.
int64_t tw_int8_scratch(int64_t rows_of_left, int64_t columns, int64_t threads) noexcept;

// The codes of the matrix are taken as they are stored. The left side is rounded, in blocks of 32 columns, to whole multiples of the
// block's largest magnitude / 127; a row with a value that is not finite gives NaN.
int tw_int8_multiply(const tw_product* product, char* error, size_t error_length) noexcept;

}
