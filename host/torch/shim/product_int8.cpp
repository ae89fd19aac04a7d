// The left side is rounded to bytes once. The matrix is taken in panels of 64 rows and in parts of 256 columns, which are unpacked to bytes
// by the thread that multiplies with them: a part stays in the first level's cache while all rows of the left side go by. Products of a
// block of 32 columns are summed exactly, and only sums of blocks are scaled and added in f32.
#include "product_int8.h"

#if defined(__x86_64__) && defined(__GNUC__)

#include <ATen/Parallel.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "guarded.h"
#include "share.h"
#include "transpose.h"

// GCC 12's intrinsics start from values that they leave undefined on purpose.
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#pragma GCC diagnostic ignored "-Wuninitialized"

namespace {

#define TW_VNNI __attribute__((target("avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")))

// Rows of the matrix in a panel: columns of the product.
constexpr int64_t kPanel = 64;
// Columns that are multiplied at once: a part of a panel takes 16 KiB, half of the smallest first-level cache.
constexpr int64_t kDepth = 256;
// Columns that share a scale of the left side.
constexpr int64_t kBlock = 32, kBlocks = kDepth / kBlock;
// Rows of the left side whose sums are kept: 256 KiB of the second level's cache. For more of them, parts are unpacked again.
constexpr int64_t kSums = 1024;
// Pieces of the left side that a thread rounds at once.
constexpr int64_t kRounded = 64;
// Rows that are transposed at once.
constexpr int64_t kStrip = 16;
// Rows of the left side that are multiplied at once: their sums, in integers and in f32, fill the registers.
constexpr int64_t kRows = 3;
// Rows of the left side that are fetched beforehand: together they are larger than a cache.
constexpr int64_t kRowsAhead = 4 * kRows;

// 1.5 · 2²³: an integer of less than 23 bits that is added to its bits stands in the lower ones of an f32. Subtracting it converts on units
// that do not multiply. Sums of 32 products are below 2²⁰.
constexpr float kShift = 12582912.0f;
constexpr int32_t kShiftBits = 0x4b400000;

// Up to 256 columns of a row of the left side.
struct alignas(64) Piece {
  int8_t codes[kDepth];
  float scales[kBlocks];
  float sums[kBlocks];         // of scaled codes
  int32_t starts[2][kBlocks];  // what sums of products start with: those of a block, or of either half of it
};

// Up to 256 columns of 64 rows of the matrix: value = scale · (code − offset) − minimum.
struct alignas(64) Part {
  uint8_t codes[kDepth / 4][kPanel][4];  // four columns of a row are neighbours
  float scales[2 * kBlocks][kPanel];     // of groups of 32 columns, or of 16
  float minima[kBlocks][kPanel];
};

struct Scratch {
  Part part;
  alignas(64) float sums[1][kPanel];  // of up to kSums rows
};

// A left side that is rounded for a matrix whose codes are above what they stand for by `offset`.
struct Rounding {
  int32_t offset;
  bool halves;  // groups of 16
};

template <typename Value>
TW_INLINE Value read(const uint8_t* from) {
  Value value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

TW_VNNI inline float half(const uint8_t* from) { return _cvtsh_ss(read<uint16_t>(from)); }

TW_VNNI inline __m256i bytes32(const uint8_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
TW_VNNI inline void store32(uint8_t* to, __m256i value) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
TW_VNNI inline __m256i low(__m256i bytes) { return _mm256_and_si256(bytes, _mm256_set1_epi8(15)); }
TW_VNNI inline __m256i high(__m256i bytes) { return low(_mm256_srli_epi16(bytes, 4)); }

// Low nibbles of 16 bytes and then their high ones.
TW_VNNI inline __m256i nibbles(const uint8_t* from) {
  const __m128i bytes = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
  return low(_mm256_inserti128_si256(_mm256_castsi128_si256(bytes), _mm_srli_epi16(bytes, 4), 1));
}
// 16 where a bit is set.
TW_VNNI inline __m256i sixteens(const uint8_t* bits) { return _mm256_maskz_set1_epi8(read<uint32_t>(bits), 16); }

template <int64_t values, int64_t bytes, int64_t group, int32_t offset, bool minima>
struct Shape {
  static constexpr int64_t kValues = values, kBytes = bytes, kGroup = group;
  static constexpr int32_t kOffset = offset;
  static constexpr bool kMinima = minima;
};

// Each block writes codes, and scales and minima kPanel values apart; the types are those of expand.cpp.
struct I8 : Shape<32, 32, 32, 128, false> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float*) {
    scales[0] = 1.0f;
    store32(codes, _mm256_xor_si256(bytes32(block), _mm256_set1_epi8(-128)));
  }
};

struct Q8_0 : Shape<32, 34, 32, 128, false> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float*) {
    scales[0] = half(block);
    store32(codes, _mm256_xor_si256(bytes32(block + 2), _mm256_set1_epi8(-128)));
  }
};

// Nibbles, with a fifth bit of each or without, above a minimum or around zero.
template <bool kFifth, bool kMinimum>
struct Nibbles : Shape<32, 18 + (kMinimum ? 2 : 0) + (kFifth ? 4 : 0), 32, kMinimum ? 0 : kFifth ? 16 : 8, kMinimum> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float* minima) {
    const uint8_t* bits = block + (kMinimum ? 4 : 2);
    scales[0] = half(block);
    if constexpr (kMinimum) minima[0] = -half(block + 2);
    if constexpr (kFifth) store32(codes, _mm256_or_si256(nibbles(bits + 4), sixteens(bits)));
    else store32(codes, nibbles(bits));
  }
};

using Q4_0 = Nibbles<false, false>;
using Q4_1 = Nibbles<false, true>;
using Q5_0 = Nibbles<true, false>;
using Q5_1 = Nibbles<true, true>;

// Factors of 32 values, of 6 bits each in 12 bytes: the scales of eight of them in the low half, and then the minima.
TW_VNNI inline __m128i scales_and_minima(const uint8_t* from) {
  const uint32_t first = read<uint32_t>(from), second = read<uint32_t>(from + 4), third = read<uint32_t>(from + 8);
  const uint32_t six = 0x3f3f3f3f, four = 0x0f0f0f0f, two = 0x03030303;
  return _mm_setr_epi32(static_cast<int>(first & six), static_cast<int>((third & four) | (first >> 6 & two) << 4),
                        static_cast<int>(second & six), static_cast<int>((third >> 4 & four) | (second >> 6 & two) << 4));
}

// Eight products with a factor, kPanel values apart.
TW_VNNI inline void scatter(__m128i bytes, float factor, float* to) {
  alignas(32) float values[kBlocks];
  _mm256_store_ps(values, _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(bytes)), _mm256_set1_ps(factor)));
#pragma GCC unroll 8
  for (int64_t i = 0; i < kBlocks; ++i) to[i * kPanel] = values[i];
}

// The factors of a block of 256 values, which has one for all scales, one for all minima, and 6 bits for each.
TW_VNNI inline void unpack_factors(const uint8_t* block, float* scales, float* minima) {
  const __m128i factors = scales_and_minima(block + 4);
  scatter(factors, half(block), scales);
  scatter(_mm_unpackhi_epi64(factors, factors), half(block + 2), minima);
}

struct Q4K : Shape<256, 144, 32, 0, true> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float* minima) {
    unpack_factors(block, scales, minima);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const __m256i bytes = bytes32(block + 16 + pair * 32);
      store32(codes + pair * 64, low(bytes));
      store32(codes + pair * 64 + 32, high(bytes));
    }
  }
};

struct Q5K : Shape<256, 176, 32, 0, true> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float* minima) {
    unpack_factors(block, scales, minima);
    const __m256i bits = bytes32(block + 16), sixteen = _mm256_set1_epi8(16);
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair) {
      const __m256i bytes = bytes32(block + 48 + pair * 32);
      const __mmask32 even = _mm256_test_epi8_mask(bits, _mm256_set1_epi8(static_cast<char>(1 << 2 * pair)));
      const __mmask32 odd = _mm256_test_epi8_mask(bits, _mm256_set1_epi8(static_cast<char>(2 << 2 * pair)));
      store32(codes + pair * 64, _mm256_or_si256(low(bytes), _mm256_maskz_mov_epi8(even, sixteen)));
      store32(codes + pair * 64 + 32, _mm256_or_si256(high(bytes), _mm256_maskz_mov_epi8(odd, sixteen)));
    }
  }
};

struct Q6K : Shape<256, 210, 16, 32, false> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float*) {
    const float d = half(block + 208);
    const __m128i factors = _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 192));
    scatter(factors, d, scales);
    scatter(_mm_unpackhi_epi64(factors, factors), d, scales + kBlocks * kPanel);
    const __m256i upper = _mm256_set1_epi8(0x30);
#pragma GCC unroll 2
    for (int side = 0; side < 2; ++side) {
      // 128 values: low nibbles of 64 bytes and then their high ones, and two bits of each of 32 bytes.
      const __m256i first = bytes32(block + side * 64), second = bytes32(block + side * 64 + 32);
      const __m256i pairs = bytes32(block + 128 + side * 32);
      uint8_t* to = codes + side * 128;
      store32(to, _mm256_or_si256(low(first), _mm256_and_si256(_mm256_slli_epi16(pairs, 4), upper)));
      store32(to + 32, _mm256_or_si256(low(second), _mm256_and_si256(_mm256_slli_epi16(pairs, 2), upper)));
      store32(to + 64, _mm256_or_si256(high(first), _mm256_and_si256(pairs, upper)));
      store32(to + 96, _mm256_or_si256(high(second), _mm256_and_si256(_mm256_srli_epi16(pairs, 2), upper)));
    }
  }
};

// Values of 4 bits that are not evenly apart (`kvalues_iq4nl`), and 128.
TW_VNNI inline __m256i non_linear(__m256i codes) {
  const __m128i values = _mm_setr_epi8(1, 24, 45, 63, 79, 93, 106, 118, static_cast<char>(129), static_cast<char>(141),
                                       static_cast<char>(153), static_cast<char>(166), static_cast<char>(181), static_cast<char>(197),
                                       static_cast<char>(217), static_cast<char>(241));
  return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), codes);
}

struct Iq4Nl : Shape<32, 18, 32, 128, false> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float*) {
    scales[0] = half(block);
    store32(codes, non_linear(nibbles(block + 2)));
  }
};

struct Iq4Xs : Shape<256, 136, 32, 128, false> {
  TW_VNNI static void unpack(const uint8_t* block, uint8_t* codes, float* scales, float*) {
    const float d = half(block);
    const uint32_t two = read<uint16_t>(block + 2), four = read<uint32_t>(block + 4);
#pragma GCC unroll 8
    for (int part = 0; part < 8; ++part) {
      const int scale = static_cast<int>((four >> part * 4 & 15) | (two >> part * 2 & 3) << 4);
      scales[part * kPanel] = d * static_cast<float>(scale - 32);
      store32(codes + part * 32, non_linear(nibbles(block + 8 + part * 16)));
    }
  }
};

// Up to 256 columns of up to 64 rows; `from` is the first row's first block, and rows are `apart` bytes apart.
template <typename Block>
TW_VNNI void unpack_part(const uint8_t* from, int64_t apart, int64_t rows, int64_t columns, Part& part) {
  alignas(64) uint8_t strip[kStrip][kDepth];
  for (int64_t first = 0; first < kPanel; first += kStrip) {
    for (int64_t row = 0; row < kStrip; ++row) {
      // In place of rows that are missing, the last one is multiplied, and never stored.
      const uint8_t* block = from + std::min(first + row, rows - 1) * apart;
      for (int64_t at = 0; at < columns; at += Block::kValues, block += Block::kBytes)
        Block::unpack(block, strip[row] + at, &part.scales[at / Block::kGroup][first + row], &part.minima[at / kBlock][first + row]);
    }
    for (int64_t at = 0; at < columns; at += 4 * kStrip)
      transpose_square(reinterpret_cast<const uint32_t*>(strip[0] + at), kDepth / 4,
                       reinterpret_cast<uint32_t*>(part.codes[at / 4][first]), kPanel);
  }
}

TW_VNNI inline __m512 load16(const float* from) { return _mm512_loadu_ps(from); }
TW_VNNI inline __m512 load16(const uint16_t* from) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

// Sums, or the largest, of the four integers in each half of eight vectors: the lower halves' and then the upper ones'.
struct Halves {
  __m256i lower, upper;
};
struct Sum {
  TW_VNNI static __m256i of_pairs(__m256i a, __m256i b) { return _mm256_hadd_epi32(a, b); }
};
struct Largest {
  TW_VNNI static __m256i of_pairs(__m256i a, __m256i b) {
    const __m256 first = _mm256_castsi256_ps(a), second = _mm256_castsi256_ps(b);
    return _mm256_max_epi32(_mm256_castps_si256(_mm256_shuffle_ps(first, second, 0x88)),
                            _mm256_castps_si256(_mm256_shuffle_ps(first, second, 0xdd)));
  }
};
template <typename Fold>
TW_VNNI inline Halves fold(const __m256i (&v)[kBlocks]) {
  const __m256i first = Fold::of_pairs(Fold::of_pairs(v[0], v[1]), Fold::of_pairs(v[2], v[3]));
  const __m256i second = Fold::of_pairs(Fold::of_pairs(v[4], v[5]), Fold::of_pairs(v[6], v[7]));
  return {_mm256_permute2x128_si256(first, second, 0x20), _mm256_permute2x128_si256(first, second, 0x31)};
}

// Eight blocks side by side, so that they are divided and summed in vectors. Blocks that are missing are zeros.
template <typename Value>
TW_VNNI void round_piece(const Value* from, int64_t columns, const Rounding& rounding, Piece& piece) {
  Value padded[kDepth];
  if (columns < kDepth) {
    std::fill(std::copy_n(from, columns, padded), padded + kDepth, Value(0));
    from = padded;
  }
  // The bits of magnitudes are in their order; those of infinity and NaN are above the others.
  const __m512i magnitude = _mm512_set1_epi32(0x7fffffff);
  __m256i vectors[kBlocks];
#pragma GCC unroll 8
  for (int64_t block = 0; block < kBlocks; ++block) {
    const __m512i a = _mm512_and_si512(_mm512_castps_si512(load16(from + block * kBlock)), magnitude);
    const __m512i b = _mm512_and_si512(_mm512_castps_si512(load16(from + block * kBlock + kLanes)), magnitude);
    const __m512i larger = _mm512_max_epi32(a, b);
    vectors[block] = _mm256_max_epi32(_mm512_castsi512_si256(larger), _mm512_extracti64x4_epi64(larger, 1));
  }
  const Halves halves = fold<Largest>(vectors);
  const __m256i largest = _mm256_max_epi32(halves.lower, halves.upper);
  const __mmask8 finite = _mm256_cmplt_epi32_mask(largest, _mm256_set1_epi32(0x7f800000));
  const __m256 whole = _mm256_div_ps(_mm256_castsi256_ps(largest), _mm256_set1_ps(127.0f));
  // Zeros, and what is too little for an inverse, are zeros. Infinity and NaN would become numbers: the scale tells of them.
  const __mmask8 normal = _mm256_mask_cmp_ps_mask(finite, whole, _mm256_set1_ps(0x1p-126f), _CMP_GE_OQ);
  const __m256 scales = _mm256_mask_mov_ps(_mm256_maskz_mov_ps(normal, whole), static_cast<__mmask8>(~finite),
                                           _mm256_set1_ps(__builtin_nanf("")));
  alignas(32) float inverses[kBlocks];
  _mm256_store_ps(inverses, _mm256_maskz_div_ps(normal, _mm256_set1_ps(1.0f), whole));
#pragma GCC unroll 8
  for (int64_t block = 0; block < kBlocks; ++block) {
    // Infinity and NaN become −2³¹, whose lowest byte is 0.
    const __m512 inverse = _mm512_set1_ps(inverses[block]);
    const __m512i a = _mm512_cvtps_epi32(_mm512_mul_ps(load16(from + block * kBlock), inverse));
    const __m512i b = _mm512_cvtps_epi32(_mm512_mul_ps(load16(from + block * kBlock + kLanes), inverse));
    const __m256i codes = _mm256_inserti128_si256(_mm256_castsi128_si256(_mm512_cvtepi32_epi8(a)), _mm512_cvtepi32_epi8(b), 1);
    _mm256_store_si256(reinterpret_cast<__m256i*>(piece.codes + block * kBlock), codes);
    vectors[block] = _mm256_dpbusd_epi32(_mm256_setzero_si256(), _mm256_set1_epi8(1), codes);
  }
  const Halves sums = fold<Sum>(vectors);
  const __m256i whole_sums = _mm256_add_epi32(sums.lower, sums.upper), offset = _mm256_set1_epi32(rounding.offset);
  const __m256i shift = _mm256_set1_epi32(kShiftBits);
  const __m256i first = _mm256_sub_epi32(shift, _mm256_mullo_epi32(rounding.halves ? sums.lower : whole_sums, offset));
  _mm256_store_si256(reinterpret_cast<__m256i*>(piece.starts[0]), first);
  if (rounding.halves) {
    const __m256i second = _mm256_sub_epi32(shift, _mm256_mullo_epi32(sums.upper, offset));
    _mm256_store_si256(reinterpret_cast<__m256i*>(piece.starts[1]), second);
  }
  _mm256_store_ps(piece.scales, scales);
  _mm256_store_ps(piece.sums, _mm256_mul_ps(scales, _mm256_cvtepi32_ps(whole_sums)));
}

// Adds the products of kCount rows of the left side with a part of a panel to their sums, or starts them.
template <int kCount, bool kHalves, bool kMinima>
TW_VNNI inline void multiply_rows(const Part& part, const Piece* left, int64_t blocks, bool start, float* sums) {
  constexpr int kVectors = kPanel / kLanes, kGroups = kHalves ? 2 : 1, kSteps = kBlock / 4 / kGroups;
  __m512 total[kCount][kVectors];
#pragma GCC unroll 4
  for (int row = 0; row < kCount; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) total[row][v] = start ? _mm512_setzero_ps() : _mm512_load_ps(sums + row * kPanel + v * kLanes);
  const uint8_t* codes = part.codes[0][0];
  const float *scales = part.scales[0], *minima = part.minima[0];
  const __m512 shift = _mm512_set1_ps(kShift);
  for (int64_t block = 0; block < blocks; ++block) {
#pragma GCC unroll 2
    for (int group = 0; group < kGroups; ++group) {
      __m512i sum[kCount][kVectors];
#pragma GCC unroll 4
      for (int row = 0; row < kCount; ++row)
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) sum[row][v] = _mm512_set1_epi32(left[row].starts[group][block]);
#pragma GCC unroll 8
      for (int step = 0; step < kSteps; ++step, codes += 4 * kPanel) {
        __m512i four[kVectors];
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          four[v] = _mm512_load_si512(codes + v * 64);
          // Keeps it in its register: the compiler would rather load it again for each row, and loads are then what takes longest.
          asm("" : "+v"(four[v]));
        }
#pragma GCC unroll 4
        for (int row = 0; row < kCount; ++row) {
          int32_t word;
          std::memcpy(&word, left[row].codes + block * kBlock + (group * kSteps + step) * 4, 4);
          const __m512i same = _mm512_set1_epi32(word);
#pragma GCC unroll 4
          for (int v = 0; v < kVectors; ++v) sum[row][v] = _mm512_dpbusd_epi32(sum[row][v], four[v], same);
        }
      }
#pragma GCC unroll 4
      for (int row = 0; row < kCount; ++row) {
        const __m512 scale = _mm512_set1_ps(left[row].scales[block]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) {
          const __m512 exact = _mm512_sub_ps(_mm512_castsi512_ps(sum[row][v]), shift);
          total[row][v] = _mm512_fmadd_ps(exact, _mm512_mul_ps(_mm512_load_ps(scales + v * kLanes), scale), total[row][v]);
        }
      }
      scales += kPanel;
    }
    if (kMinima) {
#pragma GCC unroll 4
      for (int row = 0; row < kCount; ++row) {
        const __m512 all = _mm512_set1_ps(left[row].sums[block]);
#pragma GCC unroll 4
        for (int v = 0; v < kVectors; ++v) total[row][v] = _mm512_fnmadd_ps(_mm512_load_ps(minima + v * kLanes), all, total[row][v]);
      }
      minima += kPanel;
    }
  }
#pragma GCC unroll 4
  for (int row = 0; row < kCount; ++row)
#pragma GCC unroll 4
    for (int v = 0; v < kVectors; ++v) _mm512_store_ps(sums + row * kPanel + v * kLanes, total[row][v]);
}

// What the next part is unpacked from; rows are too far apart for the processor to see them coming.
struct Ahead {
  const uint8_t* from;  // null after the last part
  int64_t apart, rows, bytes;
};

template <bool kHalves, bool kMinima>
TW_VNNI void multiply_part(const Part& part, const Piece* left, int64_t rows, int64_t blocks, bool start, const Ahead& ahead,
                           float (*sums)[kPanel]) {
  const int64_t tiles = (rows + kRows - 1) / kRows, each = (ahead.rows + tiles - 1) / tiles;
  int64_t fetched = ahead.from == nullptr ? ahead.rows : 0, row = 0;
  for (; row + kRows <= rows; row += kRows) {
    const char* later = reinterpret_cast<const char*>(left + row + kRowsAhead);
    for (size_t at = 0; at < kRows * sizeof(Piece); at += 64) _mm_prefetch(later + at, _MM_HINT_T0);
    for (const int64_t stop = std::min(fetched + each, ahead.rows); fetched < stop; ++fetched) {
      const uint8_t *from = ahead.from + fetched * ahead.apart, *end = from + ahead.bytes;
      for (const uint8_t* line = end - 1; line > from - 64; line -= 64) _mm_prefetch(line, _MM_HINT_T0);
    }
    multiply_rows<kRows, kHalves, kMinima>(part, left + row, blocks, start, sums[row]);
  }
  if (rows - row == 2) multiply_rows<2, kHalves, kMinima>(part, left + row, blocks, start, sums[row]);
  if (rows - row == 1) multiply_rows<1, kHalves, kMinima>(part, left + row, blocks, start, sums[row]);
}

// sums · scales + bias. `scale_apart` is 0 if there is but one scale.
template <typename Value>
TW_VNNI void store_rows(float (*sums)[kPanel], int64_t rows, int64_t count, const float* scales, int64_t scale_apart, const float* bias,
                        Value* to, int64_t apart) {
  alignas(64) float factors[kPanel], terms[kPanel];
  for (int64_t i = 0; i < kPanel; ++i) {
    factors[i] = scales == nullptr || i >= count ? 1.0f : scales[i * scale_apart];
    terms[i] = bias == nullptr || i >= count ? 0.0f : bias[i];
  }
  for (int64_t row = 0; row < rows; ++row, to += apart) {
    for (int64_t i = 0; i < count; i += kLanes) {
      const Lanes value = load(sums[row] + i) * load(factors + i) + load(terms + i);
      if (count - i >= kLanes) store(to + i, value);
      else store_some(to + i, value, count - i);
    }
  }
}

struct Kernel {
  int64_t values, bytes;
  Rounding rounding;
  void (*unpack)(const uint8_t*, int64_t, int64_t, int64_t, Part&);
  void (*multiply)(const Part&, const Piece*, int64_t, int64_t, bool, const Ahead&, float (*)[kPanel]);
};

template <typename Block>
constexpr Kernel kernel() {
  constexpr bool halves = Block::kGroup == 16;
  return {Block::kValues, Block::kBytes, {Block::kOffset, halves}, unpack_part<Block>, multiply_part<halves, Block::kMinima>};
}

const Kernel* kernel_of(int32_t packing) {
  static constexpr Kernel i8 = kernel<I8>(), q4_0 = kernel<Q4_0>(), q4_1 = kernel<Q4_1>(), q5_0 = kernel<Q5_0>(), q5_1 = kernel<Q5_1>(),
                          q8_0 = kernel<Q8_0>(), q4_k = kernel<Q4K>(), q5_k = kernel<Q5K>(), q6_k = kernel<Q6K>(),
                          iq4_nl = kernel<Iq4Nl>(), iq4_xs = kernel<Iq4Xs>();
  switch (packing) {
    case TW_I8: return &i8;
    case TW_Q4_0: return &q4_0;
    case TW_Q4_1: return &q4_1;
    case TW_Q5_0: return &q5_0;
    case TW_Q5_1: return &q5_1;
    case TW_Q8_0: return &q8_0;
    case TW_Q4_K: return &q4_k;
    case TW_Q5_K: return &q5_k;
    case TW_Q6_K: return &q6_k;
    case TW_IQ4_NL: return &iq4_nl;
    case TW_IQ4_XS: return &iq4_xs;
    default: return nullptr;
  }
}

int64_t parts_of(int64_t columns) { return (columns + kDepth - 1) / kDepth; }
int64_t pieces_bytes(int64_t rows, int64_t columns) { return rows * parts_of(columns) * static_cast<int64_t>(sizeof(Piece)); }
int64_t thread_bytes(int64_t rows) {
  return static_cast<int64_t>(offsetof(Scratch, sums)) + std::min(rows, kSums) * kPanel * static_cast<int64_t>(sizeof(float));
}

class Product {
 public:
  explicit Product(const tw_product& product) : job(product), matrix(*product.matrix), columns(matrix.columns) {
    const Kernel* found = kernel_of(matrix.packing);
    TORCH_CHECK(found != nullptr && tw_int8_available() && matrix.groups.codes == nullptr && columns % kBlock == 0 &&
                    columns % found->values == 0,
                "no product in bytes of packing ", matrix.packing, " and ", columns, " columns");
    kernel = *found;
  }

  void run() const {
    const int64_t panels = (matrix.rows + kPanel - 1) / kPanel, own = thread_bytes(job.rows);
    if (job.rows == 0 || panels == 0) return;
    const c10::DataPtr scratch =
        c10::GetCPUAllocator()->allocate(static_cast<size_t>(tw_int8_scratch(job.rows, columns, at::get_num_threads())));
    Piece* pieces = static_cast<Piece*>(scratch.get());
    round(pieces);
    char* threads = static_cast<char*>(scratch.get()) + pieces_bytes(job.rows, columns);
    share_out(
        panels, cancellation,
        [&](int64_t index) {
          multiply(index * kPanel, pieces, *reinterpret_cast<Scratch*>(threads + at::get_thread_num() * own));
        },
        [] {});
  }

 private:
  // Pieces of the same columns are neighbours, in the order of rows.
  void round(Piece* pieces) const {
    const int64_t parts = parts_of(columns);
    at::parallel_for(0, job.rows * parts, kRounded, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if ((i - begin) % kRounded == 0 && cancellation.is_asked()) return;
        const int64_t row = i / parts, part = i % parts, at = row * columns + part * kDepth;
        const int64_t count = std::min(kDepth, columns - part * kDepth);
        Piece& piece = pieces[part * job.rows + row];
        if (job.bf16) round_piece(static_cast<const uint16_t*>(job.left) + at, count, kernel.rounding, piece);
        else round_piece(static_cast<const float*>(job.left) + at, count, kernel.rounding, piece);
      }
    });
  }

  void multiply(int64_t first, const Piece* pieces, Scratch& scratch) const {
    const int64_t out = std::min(kPanel, matrix.rows - first), row_bytes = columns / kernel.values * kernel.bytes;
    const uint8_t* from = matrix.bytes + first * row_bytes;
    const int64_t part_bytes = kDepth / kernel.values * kernel.bytes;
    for (int64_t row = 0; row < job.rows && !cancellation.is_asked(); row += kSums) {
      const int64_t rows = std::min(kSums, job.rows - row);
      for (int64_t part = 0; part < parts_of(columns); ++part) {
        const int64_t count = std::min(kDepth, columns - part * kDepth);
        kernel.unpack(from + part * part_bytes, row_bytes, out, count, scratch.part);
        const bool last = part + 1 == parts_of(columns);
        const Ahead ahead = {last ? nullptr : from + (part + 1) * part_bytes, row_bytes, out, part_bytes};
        kernel.multiply(scratch.part, pieces + part * job.rows + row, rows, count / kBlock, part == 0, ahead, scratch.sums);
      }
      const float* scales = matrix.scale_count == 0 ? nullptr : matrix.scale_count == 1 ? matrix.scales : matrix.scales + first;
      const int64_t scale_apart = matrix.scale_count == 1 ? 0 : 1;
      const float* bias = job.bias == nullptr ? nullptr : job.bias + first;
      const int64_t at = row * job.output_apart + first;
      if (job.output_bf16)
        store_rows(scratch.sums, rows, out, scales, scale_apart, bias, static_cast<uint16_t*>(job.output) + at, job.output_apart);
      else store_rows(scratch.sums, rows, out, scales, scale_apart, bias, static_cast<float*>(job.output) + at, job.output_apart);
    }
  }

  const tw_product& job;
  const tw_packed& matrix;
  const int64_t columns;
  Kernel kernel;
  const Cancellation cancellation;
};

}  // namespace

int tw_int8_available() noexcept {
  static const bool available = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                                __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
  return available;
}

int tw_int8_packing(int32_t packing) noexcept { return kernel_of(packing) != nullptr; }

int64_t tw_int8_scratch(int64_t rows_of_left, int64_t columns, int64_t threads) noexcept {
  return pieces_bytes(rows_of_left, columns) + threads * thread_bytes(rows_of_left);
}

int tw_int8_multiply(const tw_product* product, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] { Product(*product).run(); });
}

#else

#include <stdexcept>

#include "guarded.h"

int tw_int8_available() noexcept { return 0; }
int tw_int8_packing(int32_t) noexcept { return 0; }
int64_t tw_int8_scratch(int64_t, int64_t, int64_t) noexcept { return 0; }
int tw_int8_multiply(const tw_product*, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [] { throw std::runtime_error("this processor has no product in bytes"); });
}

#endif
