// Expands quantized blocks as ggml defines them (ggml-common.h, ggml-quants.c of ggml v0.9), to the last bit of f32: products and sums are
// rounded one by one, so that this file is compiled without contraction to fused multiply-add.
#include "expand.h"

#include <ATen/Parallel.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "guarded.h"
#include "lanes16.h"

namespace {

template <typename Value>
TW_INLINE Value read(const uint8_t* from) {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

TW_INLINE float half(const uint8_t* from) { return c10::detail::fp16_ieee_to_fp32_value(read<uint16_t>(from)); }

// Each block writes its values to `to`.
struct F32 {
  static constexpr int64_t kValues = 16, kBytes = 64;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) { std::memcpy(to, block, kBytes); }
};

struct F16 {
  static constexpr int64_t kValues = 16, kBytes = 32;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    for (int64_t i = 0; i < kValues; ++i) to[i] = half(block + 2 * i);
  }
};

struct Bf16 {
  static constexpr int64_t kValues = 16, kBytes = 32;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    for (int64_t i = 0; i < kValues; ++i) {
      const uint32_t bits = static_cast<uint32_t>(read<uint16_t>(block + 2 * i)) << 16;
      std::memcpy(to + i, &bits, 4);
    }
  }
};

// A code of `exponent` and `mantissa` bits. The all-ones exponent is infinity and NaN as in IEEE, or (E4M3FN) an exponent like others,
// whose last code is NaN.
constexpr float small_float(int code, int exponent_bits, int mantissa_bits, bool ieee) {
  const int sign = code >> (exponent_bits + mantissa_bits) & 1, exponent = code >> mantissa_bits & ((1 << exponent_bits) - 1),
            mantissa = code & ((1 << mantissa_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
  const bool last = exponent == (1 << exponent_bits) - 1;
  if (ieee && last) {
    if (mantissa != 0) return std::numeric_limits<float>::quiet_NaN();
    return sign ? -std::numeric_limits<float>::infinity() : std::numeric_limits<float>::infinity();
  }
  if (!ieee && last && mantissa == (1 << mantissa_bits) - 1 && mantissa_bits == 3) return std::numeric_limits<float>::quiet_NaN();
  float value = static_cast<float>(mantissa) / static_cast<float>(1 << mantissa_bits);
  int power = exponent - bias;
  if (exponent == 0) power += 1;
  else value += 1.0f;
  for (; power > 0; --power) value *= 2.0f;
  for (; power < 0; ++power) value *= 0.5f;
  return sign ? -value : value;
}

template <int kCodes>
constexpr std::array<float, kCodes> small_floats(int exponent_bits, int mantissa_bits, bool ieee) {
  std::array<float, kCodes> values{};
  for (int code = 0; code < kCodes; ++code) values[code] = small_float(code, exponent_bits, mantissa_bits, ieee);
  return values;
}

constexpr std::array<float, 256> kE4M3 = small_floats<256>(4, 3, false), kE5M2 = small_floats<256>(5, 2, true);
constexpr std::array<float, 16> kE2M1 = small_floats<16>(2, 1, false);

template <const std::array<float, 256>& kTable>
struct F8 {
  static constexpr int64_t kValues = 16, kBytes = 16;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    for (int64_t i = 0; i < kValues; ++i) to[i] = kTable[block[i]];
  }
};

struct I8 {
  static constexpr int64_t kValues = 16, kBytes = 16;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    for (int64_t i = 0; i < kValues; ++i) to[i] = static_cast<int8_t>(block[i]);
  }
};

// The high nibble comes first.
struct F4 {
  static constexpr int64_t kValues = 16, kBytes = 8;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    for (int64_t i = 0; i < kBytes; ++i) {
      to[2 * i] = kE2M1[block[i] >> 4];
      to[2 * i + 1] = kE2M1[block[i] & 15];
    }
  }
};

// Nibbles, of which all low ones come first, with a fifth bit of each or without, above a minimum or around zero.
template <bool kFifth, bool kMinimum>
struct Nibbles {
  static constexpr int64_t kValues = 32, kBytes = 18 + (kMinimum ? 2 : 0) + (kFifth ? 4 : 0);
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const float d = half(block), m = kMinimum ? half(block + 2) : 0.0f;
    const uint8_t* bits = block + (kMinimum ? 4 : 2);
    const uint32_t high = kFifth ? read<uint32_t>(bits) : 0;
    const uint8_t* q = bits + (kFifth ? 4 : 0);
    const auto value = [&](uint32_t code) __attribute__((always_inline)) {
      return kMinimum ? static_cast<float>(static_cast<int>(code)) * d + m
                      : static_cast<float>(static_cast<int>(code) - (kFifth ? 16 : 8)) * d;
    };
    for (int i = 0; i < 16; ++i) to[i] = value((q[i] & 15) | (high >> i & 1) << 4);
    for (int i = 0; i < 16; ++i) to[i + 16] = value((q[i] >> 4) | (high >> (i + 16) & 1) << 4);
  }
};

using Q4_0 = Nibbles<false, false>;
using Q4_1 = Nibbles<false, true>;
using Q5_0 = Nibbles<true, false>;
using Q5_1 = Nibbles<true, true>;

struct Q8_0 {
  static constexpr int64_t kValues = 32, kBytes = 34;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const float d = half(block);
    for (int i = 0; i < 32; ++i) to[i] = static_cast<float>(static_cast<int8_t>(block[2 + i])) * d;
  }
};

struct Q2K {
  static constexpr int64_t kValues = 256, kBytes = 84;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const uint8_t *scales = block, *q = block + 16;
    const float d = half(block + 80), least = half(block + 82);
    for (int part = 0; part < 16; ++part) {
      // Halves of 128 values; in each, four shifts of 32 bytes; in each, two parts of 16.
      const uint8_t* from = q + part / 8 * 32 + part % 2 * 16;
      const int shift = part % 8 / 2 * 2;
      const float scale = d * static_cast<float>(scales[part] & 15), minus = least * static_cast<float>(scales[part] >> 4);
      for (int i = 0; i < 16; ++i) to[part * 16 + i] = scale * static_cast<float>(from[i] >> shift & 3) - minus;
    }
  }
};

struct Q3K {
  static constexpr int64_t kValues = 256, kBytes = 110;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const uint8_t *high = block, *q = block + 32, *scales = block + 96;
    const float d = half(block + 108);
    for (int part = 0; part < 16; ++part) {
      const int low = part < 8 ? scales[part] & 15 : scales[part - 8] >> 4;
      const int scale = low | (scales[8 + part % 4] >> (part / 4 * 2) & 3) << 4;
      const float factor = d * static_cast<float>(scale - 32);
      const uint8_t* from = q + part / 8 * 32 + part % 2 * 16;
      const uint8_t* mask = high + part % 2 * 16;
      const int shift = part % 8 / 2 * 2, bit = part / 2;
      for (int i = 0; i < 16; ++i)
        to[part * 16 + i] = factor * static_cast<float>((from[i] >> shift & 3) - ((mask[i] >> bit & 1) ^ 1) * 4);
    }
  }
};

// Scale and minimum of 32 values, of 6 bits each in 12 bytes.
TW_INLINE void scale_and_least(const uint8_t* scales, int part, int& scale, int& least) {
  if (part < 4) {
    scale = scales[part] & 63;
    least = scales[part + 4] & 63;
  } else {
    scale = (scales[part + 4] & 15) | (scales[part - 4] >> 6) << 4;
    least = (scales[part + 4] >> 4) | (scales[part] >> 6) << 4;
  }
}

// Nibbles with a fifth bit of each or without.
template <bool kFifth>
struct ScaledNibbles {
  static constexpr int64_t kValues = 256, kBytes = kFifth ? 176 : 144;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const float d = half(block), least = half(block + 2);
    const uint8_t *scales = block + 4, *high = block + 16, *q = high + (kFifth ? 32 : 0);
    for (int part = 0; part < 8; ++part) {
      int scale, minimum;
      scale_and_least(scales, part, scale, minimum);
      const float factor = d * static_cast<float>(scale), minus = least * static_cast<float>(minimum);
      const uint8_t* from = q + part / 2 * 32;
      const int shift = part % 2 * 4;
      for (int i = 0; i < 32; ++i)
        to[part * 32 + i] = factor * static_cast<float>((from[i] >> shift & 15) | (kFifth ? (high[i] >> part & 1) << 4 : 0)) - minus;
    }
  }
};

using Q4K = ScaledNibbles<false>;
using Q5K = ScaledNibbles<true>;

struct Q6K {
  static constexpr int64_t kValues = 256, kBytes = 210;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const uint8_t *low = block, *high = block + 128, *scales = block + 192;
    const float d = half(block + 208);
    for (int part = 0; part < 8; ++part) {
      // Halves of 128 values; in each, parts of 32: low nibbles of 64 bytes and then their high ones, and two bits of each of 32 bytes.
      const uint8_t *from = low + part / 4 * 64 + part % 2 * 32, *bits = high + part / 4 * 32;
      const int shift = part % 4 / 2 * 4, pair = part % 4 * 2;
      for (int side = 0; side < 2; ++side) {
        const float factor = d * static_cast<float>(static_cast<int8_t>(scales[part * 2 + side]));
        for (int i = side * 16; i < side * 16 + 16; ++i)
          to[part * 32 + i] = factor * static_cast<float>(((from[i] >> shift & 15) | (bits[i] >> pair & 3) << 4) - 32);
      }
    }
  }
};

// Values of 4 bits that are not evenly apart (`kvalues_iq4nl`).
constexpr float kNonLinear[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

struct Iq4Nl {
  static constexpr int64_t kValues = 32, kBytes = 18;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const float d = half(block);
    const uint8_t* q = block + 2;
    for (int i = 0; i < 16; ++i) to[i] = d * kNonLinear[q[i] & 15];
    for (int i = 0; i < 16; ++i) to[i + 16] = d * kNonLinear[q[i] >> 4];
  }
};

struct Iq4Xs {
  static constexpr int64_t kValues = 256, kBytes = 136;
  TW_INLINE static void expand(const uint8_t* block, float* __restrict to) {
    const float d = half(block);
    const uint16_t high = read<uint16_t>(block + 2);
    const uint8_t *low = block + 4, *q = block + 8;
    for (int part = 0; part < 8; ++part) {
      const int scale = (low[part / 2] >> part % 2 * 4 & 15) | (high >> part * 2 & 3) << 4;
      const float factor = d * static_cast<float>(scale - 32);
      const uint8_t* from = q + part * 16;
      for (int i = 0; i < 16; ++i) to[part * 32 + i] = factor * kNonLinear[from[i] & 15];
      for (int i = 0; i < 16; ++i) to[part * 32 + i + 16] = factor * kNonLinear[from[i] >> 4];
    }
  }
};

// Whole blocks, and of types without blocks what is left.
template <typename Block>
TW_INLINE void expand_values(const uint8_t* from, int64_t values, float* to) {
  int64_t done = 0;
  for (; done + Block::kValues <= values; done += Block::kValues) Block::expand(from + done / Block::kValues * Block::kBytes, to + done);
  if (done == values) return;
  uint8_t block[Block::kBytes] = {};
  float rest[Block::kValues];
  std::memcpy(block, from + done / Block::kValues * Block::kBytes, (values - done) * Block::kBytes / Block::kValues);
  Block::expand(block, rest);
  std::copy_n(rest, values - done, to + done);
}

struct Kernel {
  void (*expand)(const uint8_t*, int64_t, float*);
  int64_t values, bytes;
};

using E4M3 = F8<kE4M3>;
using E5M2 = F8<kE5M2>;

// In the order of `tw_packing`.
#define TW_BLOCKS(each)                                                                                               \
  each(F32) each(F16) each(Bf16) each(E4M3) each(E5M2) each(I8) each(F4)                                              \
  each(Q4_0) each(Q4_1) each(Q5_0) each(Q5_1) each(Q8_0) each(Q2K) each(Q3K) each(Q4K) each(Q5K) each(Q6K) each(Iq4Nl) each(Iq4Xs)

#define TW_EXPAND(Block) \
  TW_VECTORS void expand_##Block(const uint8_t* from, int64_t values, float* to) { expand_values<Block>(from, values, to); }
TW_BLOCKS(TW_EXPAND)

#define TW_KERNEL(Block) {expand_##Block, Block::kValues, Block::kBytes},
const Kernel kKernels[TW_PACKINGS] = {TW_BLOCKS(TW_KERNEL)};

float group_scale(const tw_groups& groups, int64_t index) {
  const uint8_t code = groups.codes[index];
  if (!groups.e8m0) return kE4M3[code];
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, code - 127);
}

void to_f16(const float* from, uint16_t* to, int64_t count) {
  for (int64_t i = 0; i < count; ++i) to[i] = c10::detail::fp16_ieee_from_fp32_value(from[i]);
}

}  // namespace

void tw_expand_rows(const tw_packed* packed, int64_t first, int64_t rows, float* to) noexcept {
  const Kernel& kernel = kKernels[packed->packing];
  const int64_t columns = packed->columns, row_bytes = columns / kernel.values * kernel.bytes + columns % kernel.values * kernel.bytes / kernel.values;
  const tw_groups& groups = packed->groups;
  for (int64_t row = 0; row < rows; ++row, to += columns) {
    const int64_t at = first + row;
    kernel.expand(packed->bytes + at * row_bytes, columns, to);
    const float scale = packed->scale_count == 0 ? 1.0f : packed->scales[packed->scale_count == 1 ? 0 : at];
    if (groups.codes != nullptr) {
      const int64_t count = columns / groups.values;
      for (int64_t group = 0; group < count; ++group)
        multiply_by(to + group * groups.values, group_scale(groups, at * count + group) * scale, groups.values);
    } else if (packed->scale_count != 0) {
      multiply_by(to, scale, columns);
    }
  }
}

int tw_expand(const tw_packed* packed, int64_t first, int64_t rows, int32_t kind, void* to, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const int64_t columns = packed->columns, grain = std::max<int64_t>(1, 16384 / std::max<int64_t>(1, columns));
    const Cancellation cancellation;
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      std::vector<float> row(kind == 0 ? 0 : static_cast<size_t>(columns));
      for (int64_t at = begin; at < end; ++at) {
        if ((at - begin) % grain == 0 && cancellation.is_asked()) return;
        if (kind == 0) {
          tw_expand_rows(packed, first + at, 1, static_cast<float*>(to) + at * columns);
          continue;
        }
        tw_expand_rows(packed, first + at, 1, row.data());
        (kind == 1 ? round_row : to_f16)(row.data(), static_cast<uint16_t*>(to) + at * columns, columns);
      }
    });
    cancellation.check();
  });
}
