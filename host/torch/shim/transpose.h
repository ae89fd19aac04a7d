// Transposes words of 32 bits, 16 by 16.
#pragma once
#include "lanes16.h"

TW_INLINE const Words& words(const uint32_t* from) { return *reinterpret_cast<const Words*>(from); }
TW_INLINE Words& words(uint32_t* to) { return *reinterpret_cast<Words*>(to); }

// [16][16] at `from`, its rows `apart`, to its transpose at `to`, whose rows are `to_apart`.
TW_INLINE void transpose_square(const uint32_t* from, int64_t apart, uint32_t* to, int64_t to_apart) {
  Words a[16], b[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) a[i] = words(from + i * apart);
  // Halves, quarters, pairs and single words change places.
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i) {
    b[i] = __builtin_shuffle(a[i], a[i + 8], Words{0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23});
    b[i + 8] = __builtin_shuffle(a[i], a[i + 8], Words{8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31});
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i % 8 >= 4) continue;
    a[i] = __builtin_shuffle(b[i], b[i + 4], Words{0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27});
    a[i + 4] = __builtin_shuffle(b[i], b[i + 4], Words{4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31});
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i) {
    if (i % 4 >= 2) continue;
    b[i] = __builtin_shuffle(a[i], a[i + 2], Words{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29});
    b[i + 2] = __builtin_shuffle(a[i], a[i + 2], Words{2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31});
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; i += 2) {
    words(to + i * to_apart) = __builtin_shuffle(b[i], b[i + 1], Words{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30});
    words(to + (i + 1) * to_apart) = __builtin_shuffle(b[i], b[i + 1], Words{1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31});
  }
}

// A strip of 16 rows of `count` words, which are `apart`, to columns of rows that are `to_apart`.
[[maybe_unused]] TW_VECTORS static void transpose_strip(const uint32_t* from, int64_t apart, int64_t count, uint32_t* to,
                                                        int64_t to_apart) {
  int64_t k = 0;
  for (; k + 16 <= count; k += 16) transpose_square(from + k, apart, to + k * to_apart, to_apart);
  for (; k < count; ++k)
    for (int64_t row = 0; row < 16; ++row) to[k * to_apart + row] = from[row * apart + k];
}
