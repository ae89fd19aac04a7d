// Sixteen values at once, loaded from and stored to f32 or bf16.
#pragma once
#include <cstring>

#include "vectors.h"

typedef uint32_t Words __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t Shorts __attribute__((vector_size(32), aligned(2), may_alias));

TW_INLINE Lanes load(const float* from) { return lanes(from); }
TW_INLINE Lanes load(const uint16_t* from) {
  const Words wide = __builtin_convertvector(*reinterpret_cast<const Shorts*>(from), Words) << 16;
  return reinterpret_cast<const Lanes&>(wide);
}

TW_INLINE void store(float* to, const Lanes& value) { lanes(to) = value; }
// To nearest, ties to even, and NaN stays one.
TW_INLINE void store(uint16_t* to, const Lanes& value) {
  const Words bits = reinterpret_cast<const Words&>(value);
  const Words rounded = bits + 0x7fff + (bits >> 16 & 1);
  const Words kept = (bits & 0x7fffffff) > 0x7f800000 ? (Words{} + 0x7fc00000) : rounded;
  *reinterpret_cast<Shorts*>(to) = __builtin_convertvector(kept >> 16, Shorts);
}

// Fewer than sixteen, the others zero.
template <typename Value>
TW_INLINE Lanes load_some(const Value* from, int64_t count) {
  Value some[kLanes] = {};
  std::memcpy(some, from, static_cast<size_t>(count) * sizeof(Value));
  return load(some);
}
template <typename Value>
TW_INLINE void store_some(Value* to, const Lanes& value, int64_t count) {
  Value some[kLanes];
  store(some, value);
  std::memcpy(to, some, static_cast<size_t>(count) * sizeof(Value));
}

// A row rounded to bf16.
[[maybe_unused]] TW_VECTORS static void round_row(const float* from, uint16_t* to, int64_t count) {
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) store(to + i, lanes(from + i));
  if (i < count) store_some(to + i, load_some(from + i, count - i), count - i);
}

TW_INLINE float total(const Lanes& value) {
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += value[lane];
  return sum;
}
