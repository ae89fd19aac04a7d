// Attention of several heads by libtorch's blocked products, with a softmax over blocks of keys as in attention.cpp. Keys and values of as
// many heads as there are threads are laid out for the products once, and their queries go by in blocks.
#include <ATen/native/CPUBlas.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cmath>
#include <type_traits>

#include "guarded.h"
#include "share.h"
#include "tokens.h"
#include "transpose.h"

namespace {

// Queries and keys of a block, and columns of a product.
constexpr int64_t kQueries = 64, kKeys = 512, kColumns = 64;

constexpr int64_t whole(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

// Values per word of a laid out matrix: bf16 stands in pairs.
template <typename Value>
constexpr int64_t kPerWord = 4 / sizeof(Value);

// A head's keys, in blocks of 64: [block][width][64] words, and its values: [keys][width] words.
template <typename Value>
struct Laid {
  static int64_t key_words(int64_t others, int64_t width) {
    return whole(others, kColumns) * (whole(width, kPerWord<Value>) / kPerWord<Value>);
  }
  static int64_t value_words(int64_t others, int64_t width) { return whole(others, 2) / kPerWord<Value> * whole(width, kLanes); }
};

// What a thread works in: scores, their shares in the values' type, sums of values, a product, and per query a maximum and a sum.
int64_t own_floats(int64_t width) { return kQueries * (kKeys + kKeys + whole(width, kLanes) + 2) + kColumns * whole(width, kLanes); }

// Scores become shares of exp(score − most), in place and in the values' type; returns what the sums so far have to be multiplied with.
template <typename Value>
TW_INLINE float soften_row(float* scores, Value* shares, int64_t keys, float scale, float* most, float* sum) {
  Lanes tops = Lanes{} + *most;
  int64_t k = 0;
  for (; k + kLanes <= keys; k += kLanes) {
    const Lanes scaled = lanes(scores + k) * scale;
    lanes(scores + k) = scaled;
    tops = scaled > tops ? scaled : tops;
  }
  float top = *most;
  for (; k < keys; ++k) {
    scores[k] *= scale;
    top = std::max(top, scores[k]);
  }
  for (int64_t lane = 0; lane < kLanes; ++lane) top = std::max(top, tops[lane]);
  Lanes totals{};
  for (k = 0; k + kLanes <= keys; k += kLanes) {
    Lanes power = lanes(scores + k) - top;
    exponential(power);
    store(shares + k, power);
    totals += power;
  }
  float rest = 0.0f;
  if (k < keys) {
    alignas(64) float last[kLanes] = {};
    for (int64_t i = 0; k + i < keys; ++i) rest += last[i] = std::exp(scores[k + i] - top);
    store_some(shares + k, lanes(last), keys - k);
  }
  const float factor = std::exp(*most - top);
  *sum = *sum * factor + total(totals) + rest;
  *most = top;
  return factor;
}

TW_VECTORS float soften_single(float* scores, float* shares, int64_t keys, float scale, float* most, float* sum) {
  return soften_row(scores, shares, keys, scale, most, sum);
}
TW_VECTORS float soften_narrow(float* scores, uint16_t* shares, int64_t keys, float scale, float* most, float* sum) {
  return soften_row(scores, shares, keys, scale, most, sum);
}

// Two rows of bf16 side by side.
TW_VECTORS void pair_rows(const uint16_t* low, const uint16_t* high, uint32_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = low[i] | (high == nullptr ? 0u : static_cast<uint32_t>(high[i]) << 16);
}

template <typename Value>
TW_INLINE void finish(const float* mixed, float factor, Value* output, int64_t width, bool add) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    Lanes value = lanes(mixed + c) * factor;
    if (add) value += load(output + c);
    store(output + c, value);
  }
  if (c < width) {
    Lanes value = load_some(mixed + c, width - c) * factor;
    if (add) value += load_some(output + c, width - c);
    store_some(output + c, value, width - c);
  }
}
TW_VECTORS void finish_single(const float* mixed, float factor, float* output, int64_t width, bool add) {
  finish(mixed, factor, output, width, add);
}
TW_VECTORS void finish_narrow(const float* mixed, float factor, uint16_t* output, int64_t width, bool add) {
  finish(mixed, factor, output, width, add);
}

template <typename Value>
class Attention {
  static constexpr bool kNarrow = std::is_same_v<Value, uint16_t>;
  using Product = std::conditional_t<kNarrow, at::BFloat16, float>;

 public:
  explicit Attention(const tw_heads& heads) : job(heads), extents(heads.extents), width(extents.width), others(heads.others) {}

  void run() const {
    const int64_t heads = extents.samples * extents.spans, threads = at::get_num_threads(), group = std::min<int64_t>(threads, heads);
    const int64_t laid = Laid<Value>::key_words(others, width) + Laid<Value>::value_words(others, width);
    const c10::DataPtr scratch = c10::GetCPUAllocator()->allocate(
        static_cast<size_t>(tw_attend_heads_scratch(others, width, heads, threads, kNarrow)));
    uint32_t* all = static_cast<uint32_t*>(scratch.get());
    float* own = reinterpret_cast<float*>(all + group * laid);
    const int64_t key_blocks = whole(others, kColumns) / kColumns, query_blocks = whole(extents.tokens, kQueries) / kQueries;
    for (int64_t first = 0; first < heads; first += group) {
      const int64_t count = std::min(group, heads - first);
      at::parallel_for(0, count * key_blocks, 1, [&](int64_t begin, int64_t end) {
        for (int64_t index = begin; index < end && !cancellation.is_asked(); ++index)
          lay_out(first + index / key_blocks, index % key_blocks, all + index / key_blocks * laid);
      });
      const auto attend_with_own = [&](int64_t index) {
        attend(first + index / query_blocks, index % query_blocks, all + index / query_blocks * laid, own + at::get_thread_num() * own_floats(width));
      };
      share_out(count * query_blocks, cancellation, attend_with_own, [] {
        if (kNarrow) at::native::cpublas::brgemm_release(true);
      });
    }
  }

 private:
  Value* row(const tw_rows& rows, int64_t head, int64_t token) const {
    const int64_t sample = head / extents.spans, place = head % extents.spans;
    return static_cast<Value*>(rows.values) + sample * rows.sample_apart + token * rows.apart + place * width;
  }

  // Keys and values of a block of 64 keys.
  void lay_out(int64_t head, int64_t block, uint32_t* laid) const {
    const int64_t key_words = whole(width, kPerWord<Value>) / kPerWord<Value>, columns = whole(width, kLanes);
    uint32_t* keys = laid + block * kColumns * key_words;
    alignas(64) uint32_t strip[16 * 512] = {};
    for (int64_t first = 0; first < kColumns; first += 16) {
      // Of very wide heads some words at a time.
      for (int64_t word = 0; word < key_words; word += 512) {
        const int64_t some = std::min<int64_t>(512, key_words - word);
        for (int64_t i = 0; i < 16; ++i) {
          const int64_t token = block * kColumns + first + i;
          uint32_t* to = strip + i * some;
          std::fill_n(to, some, 0u);
          if (token < others) {
            const Value* from = row(job.key, head, token) + word * kPerWord<Value>;
            const int64_t values = std::min(some * kPerWord<Value>, width - word * kPerWord<Value>);
            std::memcpy(to, from, static_cast<size_t>(values) * sizeof(Value));
          }
        }
        transpose_strip(strip, some, some, keys + word * kColumns + first, kColumns);
      }
    }
    uint32_t* values = laid + Laid<Value>::key_words(others, width);
    const int64_t end = std::min(others, (block + 1) * kColumns);
    for (int64_t token = block * kColumns; token < end; token += kPerWord<Value>) {
      uint32_t* to = values + token / kPerWord<Value> * columns;
      if constexpr (kNarrow) {
        const uint16_t* high = token + 1 < others ? row(job.value, head, token + 1) : nullptr;
        pair_rows(row(job.value, head, token), high, to, width);
      } else {
        std::memcpy(to, row(job.value, head, token), static_cast<size_t>(width) * 4);
      }
      std::fill(to + width, to + columns, 0u);
    }
  }

  static void product(int64_t rows, int64_t columns, int64_t depth, const Value* left, int64_t left_apart, const uint32_t* right,
                      int64_t right_apart, float* to, int64_t apart, bool add) {
    for (int64_t column = 0; column < columns; column += kColumns)
      at::native::cpublas::brgemm(rows, std::min(kColumns, columns - column), depth, left_apart, right_apart, apart, add,
                                  reinterpret_cast<const Product*>(left), reinterpret_cast<const Product*>(right + column), to + column,
                                  kNarrow);
  }

  void attend(int64_t head, int64_t block, const uint32_t* laid, float* own) const {
    const int64_t first = block * kQueries, rows = std::min(kQueries, extents.tokens - first);
    const int64_t key_words = whole(width, kPerWord<Value>) / kPerWord<Value>, columns = whole(width, kLanes);
    const uint32_t* values = laid + Laid<Value>::key_words(others, width);
    float* scores = own;
    Value* shares = reinterpret_cast<Value*>(scores + kQueries * kKeys);
    float* mixed = scores + 2 * kQueries * kKeys;
    float* most = mixed + kQueries * columns;
    float* sum = most + kQueries;
    const float scale = 1.0f / std::sqrt(static_cast<float>(width));
    std::fill_n(most, kQueries, -INFINITY);
    std::fill_n(sum, kQueries, 0.0f);
    std::fill_n(mixed, rows * columns, 0.0f);
    for (int64_t from = 0; from < others; from += kKeys) {
      if (cancellation.is_asked()) return;
      const int64_t keys = std::min(kKeys, others - from), even = whole(keys, kPerWord<Value>);
      for (int64_t column = 0; column < keys; column += kColumns)
        product(rows, kColumns, width, row(job.query, head, first), job.query.apart, laid + (from + column) * key_words, kColumns,
                scores + column, kKeys, false);
      for (int64_t r = 0; r < rows; ++r) {
        float factor;
        if constexpr (kNarrow) {
          factor = soften_narrow(scores + r * kKeys, shares + r * kKeys, keys, scale, most + r, sum + r);
          // A last key alone has a zero beside it.
          if (even > keys) shares[r * kKeys + keys] = 0;
        } else {
          factor = soften_single(scores + r * kKeys, shares + r * kKeys, keys, scale, most + r, sum + r);
        }
        if (factor != 1.0f) multiply_by(mixed + r * columns, factor, columns);
      }
      product(rows, columns, even, shares, kKeys, values + from / kPerWord<Value> * columns, columns, mixed, columns, true);
    }
    for (int64_t r = 0; r < rows; ++r) {
      Value* to = row(job.output, head, first + r);
      if constexpr (kNarrow) finish_narrow(mixed + r * columns, 1.0f / sum[r], to, width, job.add != 0);
      else finish_single(mixed + r * columns, 1.0f / sum[r], to, width, job.add != 0);
    }
  }

  const tw_heads& job;
  const tw_extents& extents;
  const int64_t width, others;
  const Cancellation cancellation;
};

}  // namespace

int64_t tw_attend_heads_scratch(int64_t others, int64_t width, int64_t heads, int64_t threads, int32_t bf16) noexcept {
  const int64_t laid = bf16 ? Laid<uint16_t>::key_words(others, width) + Laid<uint16_t>::value_words(others, width)
                            : Laid<float>::key_words(others, width) + Laid<float>::value_words(others, width);
  return 4 * (std::min(threads, heads) * laid + threads * own_floats(width));
}

int tw_attend_heads(const tw_heads* heads, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    if (heads->query.bf16) Attention<uint16_t>(*heads).run();
    else Attention<float>(*heads).run();
  });
}
