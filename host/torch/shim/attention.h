// Attention of one head in f32 on the CPU.
#pragma once
#include <cstddef>
#include <cstdint>

extern "C" {

// softmax(query · keyᵀ / √width) · value for one sample. All are [tokens, width]; `output` may be `query`.
int tw_attention(const float* query, const float* key, const float* value, float* output, int64_t tokens, int64_t width,
                 char* error, size_t error_length) noexcept;
}
