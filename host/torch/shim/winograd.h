// 3×3 convolutions of f32 pictures in memory order [N, H, W, C] on the CPU, by Winograd's minimal filtering with products of f32 or bf16,
// with what stands around them in a decoder done on the way: group norm and SiLU before, a sum and the next norm's statistics after. It runs where
// `tw_product_available` says so.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// Channels that are worked on together: weights are laid out in blocks of so many outputs.
enum { TW_BLOCK = 64 };
// The most frames that a convolution looks at.
enum { TW_TAPS = 3 };

struct tw_convolution {
  int64_t batch, into, out;
  int64_t width;              // of the input, in pixels
  int64_t height;             // of the whole input, of which rows first…first + rows − 1 are stored; beyond it are zeros
  int64_t first, rows;
  int64_t out_first, out_rows;  // rows of the output to compute; `output` and `add` start with the first of them
  int32_t upsample;           // the input is doubled in height and width by repeating pixels before it is convolved
  int32_t silu;               // x · sigmoid(x) after scale and shift
  int32_t taps;               // frames that the weights are for, 1 or TW_TAPS
  int32_t missing;            // the first so many of them are not there: zeros
  const float* inputs[TW_TAPS];  // of each frame that is there [batch, rows, width, into]
  const float* scale;         // [batch, into], or none: input · scale + shift comes first
  const float* shift;
  int32_t bf16;               // of products; else f32
  const void* weights;        // from tw_winograd_weights
  const float* bias;          // [out]
  const float* add;           // [batch, out_rows, out_width, out], or none: added to the result; may be `output`
  float* output;              // likewise, or none where only the sums are wanted
  int64_t add_stride, output_stride;  // from sample to sample, in values
  double* sums;               // [batch, 2, out], or none: the sum and the sum of squares of the output over its pixels are added here
};

// Values that tw_winograd_weights writes.
int64_t tw_winograd_values(int64_t into, int64_t out, int32_t taps, int32_t upsample, int32_t bf16) noexcept;
// Lays weights [out, into, taps, 3, 3] out for tw_winograd_convolve.
void tw_winograd_weights(const float* weights, int64_t into, int64_t out, int32_t taps, int32_t upsample, int32_t bf16,
                         void* laid_out) noexcept;
// Bytes of scratch that tw_winograd_convolve holds, all threads together.
int64_t tw_winograd_scratch(int64_t into, int32_t taps, int32_t upsample, int32_t bf16) noexcept;
int tw_winograd_convolve(const tw_convolution* convolution, char* error, size_t error_length) noexcept;
}
