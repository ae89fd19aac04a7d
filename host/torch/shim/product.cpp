// Rows of the matrix are expanded in panels of 64 and laid out for libtorch's blocked product at once, each by the thread that multiplies
// with it: the matrix travels through memory packed, and no more than a panel per thread is ever expanded.
#include "product.h"

#include <ATen/native/CPUBlas.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/BFloat16.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "guarded.h"
#include "share.h"
#include "transpose.h"

namespace {

// Rows of the matrix in a panel: columns of the product.
constexpr int64_t kPanel = 64;
// Rows of the left side that are multiplied at once.
constexpr int64_t kRows = 64;
// The most bytes of a panel that a product sums over at once: they stay in the second level's cache while the rows go by.
constexpr int64_t kDepthBytes = 256 << 10;
// Rows that are transposed at once.
constexpr int64_t kStrip = 16;

TW_VECTORS void add_bias(const float* from, const float* bias, float* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = from[i] + (bias == nullptr ? 0.0f : bias[i]);
}

int64_t even(int64_t columns) { return (columns + 1) / 2 * 2; }

class Product {
 public:
  explicit Product(const tw_product& product)
      : job(product),
        matrix(*product.matrix),
        columns(matrix.columns),
        stored_as_multiplied(job.bf16 && matrix.packing == TW_BF16 && matrix.scale_count == 0 && matrix.groups.codes == nullptr) {}

  void run() const {
    const int64_t panels = (matrix.rows + kPanel - 1) / kPanel, own = tw_product_scratch(columns);
    const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(static_cast<size_t>(at::get_num_threads() * own));
    const auto expand_and_multiply = [&](int64_t index) {
      uint32_t* panel = reinterpret_cast<uint32_t*>(static_cast<char*>(scratch.get()) + at::get_thread_num() * own);
      lay_out(index * kPanel, panel);
      multiply(index * kPanel, panel);
    };
    share_out(panels, cancellation, expand_and_multiply, [&] {
      if (job.bf16) at::native::cpublas::brgemm_release(true);
    });
  }

 private:
  // Words of a row: one for each value, or for two.
  int64_t row_words() const { return job.bf16 ? even(columns) / 2 : columns; }

  void lay_out(int64_t first, uint32_t* panel) const {
    // Behind the panel and the product.
    uint32_t* strip = panel + (columns + kRows) * kPanel;
    float* expanded = reinterpret_cast<float*>(strip + kStrip * columns);
    const int64_t rows = std::min(kPanel, matrix.rows - first);
    for (int64_t at = 0; at < kPanel; at += kStrip) {
      const int64_t count = std::clamp<int64_t>(rows - at, 0, kStrip);
      for (int64_t row = 0; row < count; ++row) {
        uint32_t* to = strip + row * row_words();
        // Pairs of neighbours, as they lie in the file; a last one alone has a zero beside it.
        to[row_words() - 1] = 0;
        if (stored_as_multiplied) {
          std::memcpy(to, matrix.bytes + (first + at + row) * columns * 2, static_cast<size_t>(columns) * 2);
        } else if (job.bf16) {
          tw_expand_rows(&matrix, first + at + row, 1, expanded);
          round_row(expanded, reinterpret_cast<uint16_t*>(to), columns);
        } else {
          tw_expand_rows(&matrix, first + at + row, 1, reinterpret_cast<float*>(to));
        }
      }
      std::fill_n(strip + count * row_words(), (kStrip - count) * row_words(), 0);
      transpose_strip(strip, row_words(), row_words(), panel + at, kPanel);
    }
  }

  void multiply(int64_t first, const uint32_t* panel) const {
    float* product = reinterpret_cast<float*>(const_cast<uint32_t*>(panel) + columns * kPanel);
    const int64_t out = std::min(kPanel, matrix.rows - first);
    // Equal parts, of whole pairs of values.
    const int64_t most = kDepthBytes / (kPanel * (job.bf16 ? 2 : 4)), parts = (columns + most - 1) / most;
    const int64_t depth = even((columns + parts - 1) / parts);
    for (int64_t row = 0; row < job.rows && !cancellation.is_asked(); row += kRows) {
      const int64_t rows = std::min(kRows, job.rows - row);
      for (int64_t begin = 0; begin < columns; begin += depth) {
        const int64_t count = std::min(depth, columns - begin);
        if (job.bf16) {
          at::native::cpublas::brgemm(rows, kPanel, count, columns, kPanel, kPanel, begin > 0,
                                      static_cast<const at::BFloat16*>(job.left) + row * columns + begin,
                                      reinterpret_cast<const at::BFloat16*>(panel) + begin * kPanel, product, true);
        } else {
          at::native::cpublas::brgemm(rows, kPanel, count, columns, kPanel, kPanel, begin > 0,
                                      static_cast<const float*>(job.left) + row * columns + begin,
                                      reinterpret_cast<const float*>(panel) + begin * kPanel, product, false);
        }
      }
      const float* bias = job.bias == nullptr ? nullptr : job.bias + first;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t at = (row + r) * job.output_apart + first;
        float* sums = product + r * kPanel;
        add_bias(sums, bias, job.output_bf16 ? sums : static_cast<float*>(job.output) + at, out);
        if (job.output_bf16) round_row(sums, static_cast<uint16_t*>(job.output) + at, out);
      }
    }
  }

  const tw_product& job;
  const tw_packed& matrix;
  const int64_t columns;
  const bool stored_as_multiplied;
  const Cancellation cancellation;
};

template <typename Value>
bool multiplies(bool pairs) {
  try {
    std::vector<Value> left(kRows * 16, Value(1.0f)), panel(16 * kPanel, Value(1.0f));
    std::vector<float> product(kRows * kPanel);
    at::native::cpublas::brgemm(kRows, kPanel, 16, 16, kPanel, kPanel, false, left.data(), panel.data(), product.data(), pairs);
    return product.back() == 16.0f;
  } catch (...) {
    return false;
  }
}

}  // namespace

int tw_product_available(int32_t bf16) noexcept {
  // libtorch's blocked product throws on processors that it was not written for.
  static const bool single = multiplies<float>(false);
  static const bool narrow = multiplies<at::BFloat16>(true);
  return bf16 ? narrow : single;
}

int64_t tw_product_scratch(int64_t columns) noexcept {
  // A panel, a product, a strip and a row.
  const int64_t values = (columns + kRows) * kPanel + kStrip * columns + columns;
  return (values * 4 + 63) / 64 * 64;
}

int tw_multiply(const tw_product* product, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] { Product(*product).run(); });
}
