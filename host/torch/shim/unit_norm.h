// The norm of WAN's autoencoders: each pixel's channels are scaled to length √channels, then by `gamma`; f32 in memory order
// [pixels, channels] on the CPU.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

struct tw_unit_norm_job {
  int64_t pixels, channels;
  int32_t silu;         // x · sigmoid(x) after it
  const float* input;   // [pixels, channels]
  const float* gamma;   // [channels]
  float* output;        // [pixels, channels]; may be `input`
};

int tw_unit_norm(const tw_unit_norm_job* job, char* error, size_t error_length) noexcept;
}
