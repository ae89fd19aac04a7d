// Sixteen f32 at once, for loops that compilers don't see through.
#pragma once
#include <cstdint>

// Such loops are compiled for several widths of vectors; the loader picks.
#if defined(__x86_64__) && defined(__GNUC__)
#define TW_VECTORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define TW_VECTORS
#endif

#define TW_INLINE inline __attribute__((always_inline))

// Wherever they lie; the compiler splits them where registers are narrower.
constexpr int64_t kLanes = 16;
typedef float Lanes __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef int32_t Bits __attribute__((vector_size(4 * kLanes), aligned(4), may_alias));
typedef double Wide __attribute__((vector_size(8 * kLanes), aligned(8), may_alias));

TW_INLINE const Lanes& lanes(const float* from) { return *reinterpret_cast<const Lanes*>(from); }
TW_INLINE Lanes& lanes(float* to) { return *reinterpret_cast<Lanes*>(to); }

// Multiplies values in place.
[[maybe_unused]] TW_VECTORS static void multiply_by(float* values, float factor, int64_t count) {
  for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

// Puts exp(x) in the place of x, within 2 units in the last place: Cephes' expf. Below −87 it stays at exp(−87), above 88 at exp(88).
TW_INLINE void exponential(Lanes& x) {
  x = x < -87.0f ? Lanes{} - 87.0f : x;
  x = x > 88.0f ? Lanes{} + 88.0f : x;
  const Lanes shifted = x * 1.44269504f + 12582912.0f;
  const Lanes whole = shifted - 12582912.0f;
  const Lanes rest = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Lanes power = rest * 1.9875691500e-4f + 1.3981999507e-3f;
  power = power * rest + 8.3334519073e-3f;
  power = power * rest + 4.1665795894e-2f;
  power = power * rest + 1.6666665459e-1f;
  power = power * rest + 5.0000001201e-1f;
  power = power * (rest * rest) + rest + 1.0f;
  const Bits scaled = reinterpret_cast<const Bits&>(power) + (reinterpret_cast<const Bits&>(shifted) << 23);
  x = reinterpret_cast<const Lanes&>(scaled);
}

// x / (1 + exp(-x))
TW_INLINE Lanes silu(const Lanes& x) {
  Lanes power = -x;
  exponential(power);
  return x / (1.0f + power);
}
