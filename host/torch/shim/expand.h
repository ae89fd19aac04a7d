// Values of quantized blocks.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// The types that can be expanded; `Packing` in `src/packed.rs` has the same order.
enum tw_packing : int32_t {
  TW_F32, TW_F16, TW_BF16, TW_F8_E4M3, TW_F8_E5M2, TW_I8, TW_F4,
  TW_Q4_0, TW_Q4_1, TW_Q5_0, TW_Q5_1, TW_Q8_0, TW_Q2_K, TW_Q3_K, TW_Q4_K, TW_Q5_K, TW_Q6_K, TW_IQ4_NL, TW_IQ4_XS,
  TW_PACKINGS,
};

// Scales of groups of values within a row. Each is a code of 8 bits.
struct tw_groups {
  const uint8_t* codes;  // [rows, columns / values]; null if there are no groups
  int64_t values;        // in a group
  int32_t e8m0;          // powers of two; else E4M3
};

// A matrix in rows of whole blocks.
struct tw_packed {
  const uint8_t* bytes;
  int64_t rows, columns;
  int32_t packing;
  const float* scales;  // `scale_count` of them: of the whole matrix (1), of each row, or none
  int64_t scale_count;
  tw_groups groups;
};

// The type of the values that are written: 0 f32, 1 bf16, 2 f16.
// Writes rows first … first + rows − 1, one after another.
int tw_expand(const tw_packed* packed, int64_t first, int64_t rows, int32_t kind, void* to, char* error,
              size_t error_length) noexcept;

// Expands rows in f32 on this thread; `to` has rows of `columns` values.
void tw_expand_rows(const tw_packed* packed, int64_t first, int64_t rows, float* to) noexcept;

}
