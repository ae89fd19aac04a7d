// Passes over tokens in f32 or bf16, on the CPU.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// Rows of values, `apart` values from one to the next, of f32 or bf16. Samples lie `sample_apart` values apart.
struct tw_rows {
  void* values;
  int64_t apart, sample_apart;
  int32_t bf16;
};

// Tokens of samples. A span of a modulation or gate is for as many tokens in a row as there are tokens over spans.
struct tw_extents {
  int64_t samples, tokens, width, spans;
};

// (x − mean) / √(variance + epsilon), then · weight + bias if these are given, then · (1 + scale) + shift if these are given: a span's, in
// f32, `span_apart` values from one to the next and `modulation_sample_apart` from sample to sample.
struct tw_layer_norm {
  tw_extents extents;
  tw_rows input, output;
  float epsilon;
  const float *weight, *bias, *shift, *scale;
  int64_t span_apart, modulation_sample_apart;
};
int tw_layer_norm_rows(const tw_layer_norm* norm, char* error, size_t error_length) noexcept;

// x / √(mean of squares + epsilon) · weight in place, over `over` values at a time; then pairs are turned by cosines and sines [tokens,
// turned] if these are given.
struct tw_head_norm {
  tw_extents extents;
  tw_rows rows;
  float epsilon;
  const float* weight;
  int64_t over;
  const float* rotation;
  int64_t turned;
};
int tw_norm_heads(const tw_head_norm* norm, char* error, size_t error_length) noexcept;

// x · Φ(x), with Φ by a tanh.
struct tw_gelu {
  tw_extents extents;
  tw_rows input, output;
};
int tw_gelu_rows(const tw_gelu* gelu, char* error, size_t error_length) noexcept;

// tokens += gate · other, in place; the gate as the modulation of a norm, or none.
struct tw_gated_sum {
  tw_extents extents;
  tw_rows tokens, other;
  const float* gate;
  int64_t span_apart, gate_sample_apart;
};
int tw_add_gated(const tw_gated_sum* sum, char* error, size_t error_length) noexcept;

// Attention of heads side by side in their tokens: output = softmax(query · keyᵀ / √width) · value, or added to output. All are of one
// type; the extents' width is a head's, and their spans the heads.
struct tw_heads {
  tw_extents extents;
  int64_t others;  // tokens of keys and values
  tw_rows query, key, value, output;
  int32_t add;
};
int tw_attend_heads(const tw_heads* heads, char* error, size_t error_length) noexcept;

// Bytes that it holds meanwhile, on so many threads.
int64_t tw_attend_heads_scratch(int64_t others, int64_t width, int64_t heads, int64_t threads, int32_t bf16) noexcept;

}
