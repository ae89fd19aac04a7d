// Each pass reads and writes its tokens once.
#include "tokens.h"

#include <algorithm>
#include <cmath>

#include "guarded.h"
#include "lanes16.h"
#include "share.h"

namespace {

// Values that a thread takes at once.
constexpr int64_t kGrain = 1 << 15;

// Applies `work(values, index)` to each sixteen values of a row; the last ones alone.
#define TW_EACH(width, index, whole, some)                      \
  do {                                                          \
    int64_t index = 0;                                          \
    for (; index + kLanes <= (width); index += kLanes) whole;   \
    if (index < (width)) some;                                  \
  } while (false)

template <typename In, typename Out>
TW_INLINE void norm_row(const In* from, Out* to, int64_t width, float epsilon, const float* weight, const float* bias,
                        const float* shift, const float* scale) {
  Lanes sums{};
  TW_EACH(width, i, sums += load(from + i), sums += load_some(from + i, width - i));
  const float mean = total(sums) / static_cast<float>(width);
  Lanes squares{};
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    const Lanes off = load(from + c) - mean;
    squares += off * off;
  }
  float rest = 0;
  if (c < width) {
    const Lanes off = load_some(from + c, width - c) - mean;
    for (int64_t lane = 0; lane < width - c; ++lane) rest += off[lane] * off[lane];
  }
  const float factor = 1.0f / std::sqrt((total(squares) + rest) / static_cast<float>(width) + epsilon);
  const auto finish = [&](Lanes value, int64_t at, auto get) __attribute__((always_inline)) {
    value = (value - mean) * factor;
    if (weight != nullptr) value = value * get(weight + at) + get(bias + at);
    if (scale != nullptr) value = value * (1.0f + get(scale + at)) + get(shift + at);
    return value;
  };
  const auto get_all = [](const float* of) __attribute__((always_inline)) { return load(of); };
  for (c = 0; c + kLanes <= width; c += kLanes) store(to + c, finish(load(from + c), c, get_all));
  if (c < width) {
    const int64_t left = width - c;
    const auto get_some = [left](const float* of) __attribute__((always_inline)) { return load_some(of, left); };
    store_some(to + c, finish(load_some(from + c, left), c, get_some), left);
  }
}

// Every combination of types is compiled for several widths of vectors.
#define TW_NORM(name, In, Out)                                                                                                    \
  TW_VECTORS void name(const void* from, void* to, int64_t width, float epsilon, const float* weight, const float* bias,         \
                       const float* shift, const float* scale) {                                                                  \
    norm_row(static_cast<const In*>(from), static_cast<Out*>(to), width, epsilon, weight, bias, shift, scale);                   \
  }
TW_NORM(norm_single, float, float)
TW_NORM(norm_narrowing, float, uint16_t)
TW_NORM(norm_widening, uint16_t, float)
TW_NORM(norm_narrow, uint16_t, uint16_t)

template <typename Value>
TW_INLINE void norm_heads_row(Value* row, int64_t width, int64_t over, float epsilon, const float* weight, const float* rotation,
                              int64_t turned) {
  for (int64_t first = 0; first < width; first += over) {
    Value* part = row + first;
    Lanes squares{};
    int64_t c = 0;
    for (; c + kLanes <= over; c += kLanes) {
      const Lanes value = load(part + c);
      squares += value * value;
    }
    if (c < over) {
      const Lanes value = load_some(part + c, over - c);
      squares += value * value;
    }
    const float factor = 1.0f / std::sqrt(total(squares) / static_cast<float>(over) + epsilon);
    for (c = 0; c < over; c += kLanes) {
      const int64_t count = std::min(kLanes, over - c);
      Lanes value = count == kLanes ? load(part + c) : load_some(part + c, count);
      value = value * factor * (count == kLanes ? load(weight + c) : load_some(weight + c, count));
      if (rotation != nullptr) {
        const int64_t base = (first + c) % turned;
        Lanes table;
        if (base + kLanes <= turned) {
          table = load(rotation + base);
        } else {
          // A head ends within.
          for (int64_t i = 0; i < kLanes; ++i) table[i] = rotation[(base + i) % turned];
        }
        const Lanes cosine = __builtin_shuffle(table, Words{0, 0, 2, 2, 4, 4, 6, 6, 8, 8, 10, 10, 12, 12, 14, 14});
        const Lanes sine = __builtin_shuffle(table, Words{1, 1, 3, 3, 5, 5, 7, 7, 9, 9, 11, 11, 13, 13, 15, 15}) *
                           Lanes{-1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1};
        // Neighbours change places.
        const Lanes other = __builtin_shuffle(value, Words{1, 0, 3, 2, 5, 4, 7, 6, 9, 8, 11, 10, 13, 12, 15, 14});
        value = value * cosine + other * sine;
      }
      if (count == kLanes) store(part + c, value);
      else store_some(part + c, value, count);
    }
  }
}

TW_VECTORS void norm_heads_single(void* row, int64_t width, int64_t over, float epsilon, const float* weight, const float* rotation,
                                  int64_t turned) {
  norm_heads_row(static_cast<float*>(row), width, over, epsilon, weight, rotation, turned);
}
TW_VECTORS void norm_heads_narrow(void* row, int64_t width, int64_t over, float epsilon, const float* weight, const float* rotation,
                                  int64_t turned) {
  norm_heads_row(static_cast<uint16_t*>(row), width, over, epsilon, weight, rotation, turned);
}

// x · sigmoid(2 · √(2/π) · (x + 0.044715 · x³)), which is the tanh's form.
TW_INLINE Lanes gelu(const Lanes& x) {
  Lanes power = x * (x * x * -0.0713548162726f - 1.59576912161f);
  exponential(power);
  return x / (1.0f + power);
}

template <typename In, typename Out>
TW_INLINE void gelu_row(const In* from, Out* to, int64_t width) {
  TW_EACH(width, i, store(to + i, gelu(load(from + i))), store_some(to + i, gelu(load_some(from + i, width - i)), width - i));
}

#define TW_GELU(name, In, Out)                                                      \
  TW_VECTORS void name(const void* from, void* to, int64_t width) {                 \
    gelu_row(static_cast<const In*>(from), static_cast<Out*>(to), width);           \
  }
TW_GELU(gelu_single, float, float)
TW_GELU(gelu_narrowing, float, uint16_t)
TW_GELU(gelu_widening, uint16_t, float)
TW_GELU(gelu_narrow, uint16_t, uint16_t)

template <typename To, typename From>
TW_INLINE void add_row(To* to, const From* from, const float* gate, int64_t width) {
  if (gate == nullptr) {
    TW_EACH(width, i, store(to + i, load(to + i) + load(from + i)),
            store_some(to + i, load_some(to + i, width - i) + load_some(from + i, width - i), width - i));
  } else {
    TW_EACH(width, i, store(to + i, load(to + i) + load(from + i) * load(gate + i)),
            store_some(to + i, load_some(to + i, width - i) + load_some(from + i, width - i) * load_some(gate + i, width - i), width - i));
  }
}

#define TW_ADD(name, To, From)                                                                   \
  TW_VECTORS void name(void* to, const void* from, const float* gate, int64_t width) {          \
    add_row(static_cast<To*>(to), static_cast<const From*>(from), gate, width);                  \
  }
TW_ADD(add_single, float, float)
TW_ADD(add_widening, float, uint16_t)
TW_ADD(add_narrowing, uint16_t, float)
TW_ADD(add_narrow, uint16_t, uint16_t)

void* place_of(const tw_rows& rows, int64_t sample, int64_t token) {
  const int64_t values = sample * rows.sample_apart + token * rows.apart;
  return static_cast<char*>(rows.values) + values * (rows.bf16 ? 2 : 4);
}

// Calls `work(sample, token)` for each token, on all threads.
template <typename Work>
void each_token(const tw_extents& extents, Work&& work) {
  each_in_blocks(extents.samples * extents.tokens, std::max<int64_t>(1, kGrain / std::max<int64_t>(1, extents.width)),
                 [&](int64_t index) { work(index / extents.tokens, index % extents.tokens); });
}

}  // namespace

int tw_layer_norm_rows(const tw_layer_norm* norm, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const tw_extents& extents = norm->extents;
    const auto row = norm->input.bf16 ? (norm->output.bf16 ? norm_narrow : norm_widening)
                                      : (norm->output.bf16 ? norm_narrowing : norm_single);
    const int64_t span = extents.tokens / extents.spans;
    each_token(extents, [&](int64_t sample, int64_t token) {
      const int64_t place = sample * norm->modulation_sample_apart + token / span * norm->span_apart;
      const float* shift = norm->shift == nullptr ? nullptr : norm->shift + place;
      const float* scale = norm->scale == nullptr ? nullptr : norm->scale + place;
      row(place_of(norm->input, sample, token), place_of(norm->output, sample, token), extents.width, norm->epsilon, norm->weight,
          norm->bias, shift, scale);
    });
  });
}

int tw_norm_heads(const tw_head_norm* norm, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const auto row = norm->rows.bf16 ? norm_heads_narrow : norm_heads_single;
    // A norm over one head has the same weights in each.
    each_token(norm->extents, [&](int64_t sample, int64_t token) {
      const float* rotation = norm->rotation == nullptr ? nullptr : norm->rotation + token * norm->turned;
      row(place_of(norm->rows, sample, token), norm->extents.width, norm->over, norm->epsilon, norm->weight, rotation, norm->turned);
    });
  });
}

int tw_gelu_rows(const tw_gelu* job, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const auto row = job->input.bf16 ? (job->output.bf16 ? gelu_narrow : gelu_widening) : (job->output.bf16 ? gelu_narrowing : gelu_single);
    each_token(job->extents, [&](int64_t sample, int64_t token) {
      row(place_of(job->input, sample, token), place_of(job->output, sample, token), job->extents.width);
    });
  });
}

int tw_add_gated(const tw_gated_sum* sum, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const auto row = sum->tokens.bf16 ? (sum->other.bf16 ? add_narrow : add_narrowing) : (sum->other.bf16 ? add_widening : add_single);
    const int64_t span = sum->extents.tokens / sum->extents.spans;
    each_token(sum->extents, [&](int64_t sample, int64_t token) {
      const float* gate =
          sum->gate == nullptr ? nullptr : sum->gate + sample * sum->gate_sample_apart + token / span * sum->span_apart;
      row(place_of(sum->tokens, sample, token), place_of(sum->other, sample, token), gate, sum->extents.width);
    });
  });
}
