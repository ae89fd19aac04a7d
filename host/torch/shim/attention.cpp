// Softmax over blocks of keys with a running maximum and sum, after Milakov and Gimelshein, "Online normalizer calculation for softmax"
// (2018), so that no matrix of all scores is ever held. libtorch's fused attention does the same by products that run at half
// speed on processors that are not Intel's.
#include "attention.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cmath>

#include "guarded.h"
#include "vectors.h"

namespace {

// Queries and keys of a block, and columns of a product: keys are laid out in blocks of so many.
constexpr int64_t kQueries = 64, kKeys = 512, kColumns = 64;

int64_t blocks(int64_t tokens) { return (tokens + kColumns - 1) / kColumns; }

// What a thread works in, in values: scores, sums of values, and for each query the maximum and the sum.
int64_t own_values(int64_t width) { return kQueries * (kKeys + width + 2); }

// Scores become shares of exp(score − most); `most` and `sum` are brought up to date. Returns what the sums so far have to be multiplied with.
TW_VECTORS float soften(float* __restrict scores, int64_t keys, float scale, float* most, float* sum) {
  float top = *most;
  Lanes tops = Lanes{} + top;
  int64_t k = 0;
  for (; k + kLanes <= keys; k += kLanes) {
    const Lanes scaled = lanes(scores + k) * scale;
    lanes(scores + k) = scaled;
    tops = scaled > tops ? scaled : tops;
  }
  for (; k < keys; ++k) {
    scores[k] *= scale;
    top = std::max(top, scores[k]);
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) top = std::max(top, tops[lane]);
  Lanes total{};
  for (k = 0; k + kLanes <= keys; k += kLanes) {
    Lanes power = lanes(scores + k) - top;
    exponential(power);
    lanes(scores + k) = power;
    total += power;
  }
  float rest = 0.0f;
  for (; k < keys; ++k) rest += scores[k] = std::exp(scores[k] - top);
  for (int64_t lane = 0; lane < kLanes; ++lane) rest += total[lane];
  const float factor = std::exp(*most - top);
  *sum = *sum * factor + rest;
  *most = top;
  return factor;
}

void product(int64_t rows, int64_t columns, int64_t depth, const float* left, int64_t left_apart, const float* right,
             int64_t right_apart, float* to, int64_t apart, bool add) {
  for (int64_t column = 0; column < columns; column += kColumns)
    at::native::cpublas::brgemm(rows, std::min(kColumns, columns - column), depth, left_apart, right_apart, apart, add, left,
                                right + column, to + column, false);
}

}  // namespace

int tw_attention(const float* query, const float* key, const float* value, float* output, int64_t tokens, int64_t width,
                 char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const int64_t values = blocks(tokens) * kColumns * width + at::get_num_threads() * own_values(width);
    const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(static_cast<size_t>(values) * sizeof(float));
    float* laid = static_cast<float*>(scratch.get());
    const Cancellation cancellation;
    float* all = laid + blocks(tokens) * kColumns * width;
    at::parallel_for(0, blocks(tokens), 1, [&](int64_t begin, int64_t end) {
      for (int64_t block = begin; block < end && !cancellation.is_asked(); ++block)
        for (int64_t k = 0; k < kColumns; ++k) {
          const int64_t token = block * kColumns + k;
          float* to = laid + block * kColumns * width + k;
          for (int64_t c = 0; c < width; ++c) to[c * kColumns] = token < tokens ? key[token * width + c] : 0.0f;
        }
    });
    cancellation.check();
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    at::parallel_for(0, (tokens + kQueries - 1) / kQueries, 1, [&](int64_t begin, int64_t end) {
      float* scores = all + at::get_thread_num() * own_values(width);
      float* mixed = scores + kQueries * kKeys;
      float* most = mixed + kQueries * width;
      float* sum = most + kQueries;
      for (int64_t block = begin; block < end; ++block) {
        const int64_t first = block * kQueries, rows = std::min(kQueries, tokens - first);
        std::fill_n(most, kQueries, -INFINITY);
        std::fill_n(sum, kQueries, 0.0f);
        std::fill_n(mixed, rows * width, 0.0f);
        for (int64_t from = 0; from < tokens; from += kKeys) {
          if (cancellation.is_asked()) return;
          const int64_t keys = std::min(kKeys, tokens - from);
          for (int64_t column = 0; column < keys; column += kColumns)
            product(rows, kColumns, width, query + first * width, width, laid + (from + column) * width, kColumns,
                    scores + column, kKeys, false);
          for (int64_t row = 0; row < rows; ++row) {
            const float factor = soften(scores + row * kKeys, keys, scale, most + row, sum + row);
            if (factor != 1.0f) multiply_by(mixed + row * width, factor, width);
          }
          product(rows, width, keys, scores, kKeys, value + from * width, width, mixed, width, true);
        }
        for (int64_t row = 0; row < rows; ++row) {
          multiply_by(mixed + row * width, 1.0f / sum[row], width);
          std::copy_n(mixed + row * width, width, output + (first + row) * width);
        }
      }
    });
    cancellation.check();
  });
}
