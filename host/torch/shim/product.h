// Products with a matrix that stays packed.
#pragma once
#include "expand.h"

extern "C" {

// left [rows, columns of the matrix] · matrixᵀ, plus a bias.
struct tw_product {
  const tw_packed* matrix;
  int64_t rows;
  int32_t bf16;         // the type of left: bf16, or else f32; sums are f32
  int32_t output_bf16;  // the same of output
  const void* left;   // contiguous
  const float* bias;  // one per row of the matrix, or null
  void* output;       // rows `output_apart` values apart
  int64_t output_apart;
};

// 1 if this processor has the blocked products for a type.
int tw_product_available(int32_t bf16) noexcept;

// Bytes that each thread works in.
int64_t tw_product_scratch(int64_t columns) noexcept;

int tw_multiply(const tw_product* product, char* error, size_t error_length) noexcept;

}
