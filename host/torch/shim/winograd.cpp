// F(2×2, 3×3) after Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks" (2016), section 4.1: outputs are worked out in
// tiles of 2×2 from input tiles of 4×4, with 16 products per channel pair where the definition takes 36. After an upsampling by repetition
// the middle two rows and columns of an input tile are equal, one of the four sums in either direction vanishes, and 9 products are left.
//
// Each thread takes blocks of tiles through all steps, so that only the input and the output travel through memory. Products are of f32,
// or of bf16 summed in f32: then transformed tiles and weights are rounded, and nothing else is.
#include "winograd.h"

#include <ATen/Parallel.h>
#include <ATen/native/CPUBlas.h>
#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <type_traits>
#include <vector>

#include "guarded.h"
#include "lanes16.h"

namespace {

// Tiles of a block, along the height and the width.
constexpr int64_t kTilesDown = 8, kTilesAcross = 8, kTiles = kTilesDown * kTilesAcross;

// Of the direct case: input tiles of 4, 2 apart; of the upsampled one: 3, 1 apart, in pixels of the input.
struct Direct {
  static constexpr int kSide = 4, kStep = 2;
};
struct Upsampled {
  static constexpr int kSide = 3, kStep = 1;
};
template <typename Case>
constexpr int64_t patch_rows = (kTilesDown - 1) * Case::kStep + Case::kSide;
template <typename Case>
constexpr int64_t patch_columns = (kTilesAcross - 1) * Case::kStep + Case::kSide;

constexpr int64_t padded(int64_t channels) { return (channels + kLanes - 1) / kLanes * kLanes; }

// Rows of the laid out weights per frame: of several frames each begins where its input's channels do. Rows of bf16 stand in pairs.
template <typename Value>
constexpr int64_t rows_of(int64_t into, int32_t taps) {
  if (taps != 1) return padded(into);
  return sizeof(Value) == 2 ? (into + 1) / 2 * 2 : into;
}

// A pixel's channels after scale, shift and SiLU; `to` has room for padded(channels).
TW_VECTORS void prepare(float* __restrict to, const float* __restrict from, const float* __restrict scale,
                        const float* __restrict shift, bool activate, int64_t channels) {
  if (channels % kLanes != 0) {
    for (int64_t c = 0; c < channels; ++c) to[c] = scale == nullptr ? from[c] : from[c] * scale[c] + shift[c];
    std::fill(to + channels, to + padded(channels), 0.0f);
  } else if (scale == nullptr) {
    std::copy_n(from, channels, to);
  } else if (activate) {
    for (int64_t c = 0; c < channels; c += kLanes) lanes(to + c) = silu(lanes(from + c) * lanes(scale + c) + lanes(shift + c));
    return;
  } else {
    for (int64_t c = 0; c < channels; c += kLanes) lanes(to + c) = lanes(from + c) * lanes(scale + c) + lanes(shift + c);
  }
  if (activate)
    for (int64_t c = 0; c < channels; c += kLanes) lanes(to + c) = silu(lanes(to + c));
}

// One direction of the input's transform.
template <typename Case>
TW_INLINE void transform(const Lanes* in, int stride, Lanes* out) {
  if constexpr (Case::kSide == 4) {
    const Lanes a = in[0], b = in[stride], c = in[2 * stride], d = in[3 * stride];
    out[0] = a - c, out[stride] = b + c, out[2 * stride] = c - b, out[3 * stride] = b - d;
  } else {
    const Lanes a = in[0], b = in[stride], c = in[2 * stride];
    out[0] = a - b, out[stride] = b, out[2 * stride] = b - c;
  }
}

template <typename Case, typename Value>
TW_INLINE void transform_tile(const float* patch, int64_t row, Value* to, int64_t apart, int64_t channels) {
  constexpr int side = Case::kSide;
  for (int64_t c = 0; c < channels; c += kLanes) {
    Lanes values[side * side], half[side * side], whole[side * side];
#pragma GCC unroll 16
    for (int i = 0; i < side * side; ++i) values[i] = lanes(patch + i / side * row + i % side * TW_BLOCK + c);
#pragma GCC unroll 4
    for (int x = 0; x < side; ++x) transform<Case>(values + x, side, half + x);
#pragma GCC unroll 4
    for (int y = 0; y < side; ++y) transform<Case>(half + y * side, 1, whole + y * side);
#pragma GCC unroll 16
    for (int i = 0; i < side * side; ++i) store(to + i * apart + c, whole[i]);
  }
}

// Every combination is compiled for several widths of vectors.
#define TW_TRANSFORM(Case, Value)                                                                                     \
  TW_VECTORS void transform_one(Case, const float* patch, int64_t row, Value* to, int64_t apart, int64_t channels) { \
    transform_tile<Case>(patch, row, to, apart, channels);                                                            \
  }
TW_TRANSFORM(Direct, float)
TW_TRANSFORM(Direct, uint16_t)
TW_TRANSFORM(Upsampled, float)
TW_TRANSFORM(Upsampled, uint16_t)

// One direction of the output's transform: two values.
template <typename Case>
TW_INLINE void gather(const Lanes* in, int stride, Lanes* out, int apart) {
  if constexpr (Case::kSide == 4) {
    out[0] = in[0] + in[stride] + in[2 * stride];
    out[apart] = in[stride] - in[2 * stride] - in[3 * stride];
  } else {
    out[0] = in[0] + in[stride];
    out[apart] = in[stride] - in[2 * stride];
  }
}

template <typename Case>
TW_INLINE void gather_tile(const float* from, float* to, int64_t channels) {
  constexpr int side = Case::kSide;
  for (int64_t c = 0; c < channels; c += kLanes) {
    Lanes values[side * side], half[2 * side], whole[4];
#pragma GCC unroll 16
    for (int i = 0; i < side * side; ++i) values[i] = lanes(from + i * kTiles * TW_BLOCK + c);
#pragma GCC unroll 4
    for (int x = 0; x < side; ++x) gather<Case>(values + x, side, half + x, side);
#pragma GCC unroll 2
    for (int y = 0; y < 2; ++y) gather<Case>(half + y * side, 1, whole + 2 * y, 1);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) lanes(to + i * TW_BLOCK + c) = whole[i];
  }
}

TW_VECTORS void gather_direct(const float* from, float* to, int64_t channels) { gather_tile<Direct>(from, to, channels); }
TW_VECTORS void gather_upsampled(const float* from, float* to, int64_t channels) { gather_tile<Upsampled>(from, to, channels); }

// Adds bias and `add`, stores and counts one pixel's channels.
TW_VECTORS void finish(float* __restrict value, const float* __restrict bias, const float* add, float* output,
                       double* __restrict sum, double* __restrict squares, int64_t channels) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    Lanes total = lanes(value + c) + lanes(bias + c);
    if (add != nullptr) total += lanes(add + c);
    if (output != nullptr) lanes(output + c) = total;
    if (sum != nullptr) {
      const Wide wide = __builtin_convertvector(total, Wide);
      reinterpret_cast<Wide&>(sum[c]) += wide;
      reinterpret_cast<Wide&>(squares[c]) += wide * wide;
    }
  }
  for (; c < channels; ++c) {
    const float total = value[c] + bias[c] + (add == nullptr ? 0.0f : add[c]);
    if (output != nullptr) output[c] = total;
    if (sum != nullptr) {
      sum[c] += total;
      squares[c] += static_cast<double>(total) * total;
    }
  }
}

// The same of a tile's four pixels, which are `across` and `down` values apart. Four are added in f32 before they are counted: sums travel
// through memory for each tile, not for each pixel.
TW_VECTORS void finish_tile(const float* pixels, const float* __restrict bias, const float* add, float* output, int64_t across,
                            int64_t down, double* __restrict sum, double* __restrict squares, int64_t channels) {
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) {
    Lanes all = {}, squared = {};
#pragma GCC unroll 4
    for (int pixel = 0; pixel < 4; ++pixel) {
      const int64_t at = pixel / 2 * down + pixel % 2 * across + c;
      Lanes total = lanes(pixels + pixel * TW_BLOCK + c) + lanes(bias + c);
      if (add != nullptr) total += lanes(add + at);
      if (output != nullptr) lanes(output + at) = total;
      all += total;
      squared += total * total;
    }
    if (sum != nullptr) {
      reinterpret_cast<Wide&>(sum[c]) += __builtin_convertvector(all, Wide);
      reinterpret_cast<Wide&>(squares[c]) += __builtin_convertvector(squared, Wide);
    }
  }
  for (; c < channels; ++c) {
    for (int pixel = 0; pixel < 4; ++pixel) {
      const int64_t at = pixel / 2 * down + pixel % 2 * across + c;
      const float total = pixels[pixel * TW_BLOCK + c] + bias[c] + (add == nullptr ? 0.0f : add[at]);
      if (output != nullptr) output[at] = total;
      if (sum != nullptr) {
        sum[c] += total;
        squares[c] += static_cast<double>(total) * total;
      }
    }
  }
}

// [kTiles, depth], its rows `apart`, times [depth, columns]; `laid` has rows of TW_BLOCK, and so has the product.
template <typename Value>
void multiply(const Value* tiles, const Value* laid, float* product, int64_t depth, int64_t apart, int64_t columns) {
  using Product = std::conditional_t<std::is_same_v<Value, float>, float, at::BFloat16>;
  at::native::cpublas::brgemm(kTiles, columns, depth, apart, TW_BLOCK, TW_BLOCK, false, reinterpret_cast<const Product*>(tiles),
                              reinterpret_cast<const Product*>(laid), product, !std::is_same_v<Value, float>);
}

template <typename Case>
constexpr int64_t points = Case::kSide * Case::kSide;

// What a thread works in, in f32 values; transformed tiles come last.
template <typename Case, typename Value>
struct Scratch {
  static constexpr int64_t patch = patch_rows<Case> * patch_columns<Case> * TW_BLOCK, product = points<Case> * kTiles * TW_BLOCK,
                           tile = 4 * TW_BLOCK;
  static int64_t values(int64_t into, int32_t taps) {
    return patch + product + tile + points<Case> * kTiles * taps * padded(into) * static_cast<int64_t>(sizeof(Value)) / 4;
  }
};

template <typename Case, typename Value>
class Blocks {
  using Own = Scratch<Case, Value>;

 public:
  explicit Blocks(const tw_convolution& convolution) : conv(convolution) {
    const int64_t scale = Case::kSide == 3 ? 2 : 1;
    out_width = conv.width * scale;
    const int64_t last = conv.out_first + conv.out_rows;
    first_tile = conv.out_first / 2;
    down = (last + 1) / 2 - first_tile;
    across = (out_width + 1) / 2;
    blocks_down = (down + kTilesDown - 1) / kTilesDown;
    blocks_across = (across + kTilesAcross - 1) / kTilesAcross;
  }

  void run() {
    const int threads = at::get_num_threads();
    std::vector<double> sums(conv.sums == nullptr ? 0 : static_cast<size_t>(threads * conv.batch * 2 * conv.out));
    const c10::DataPtr scratch =
        c10::GetCPUAllocator()->allocate(static_cast<size_t>(threads * Own::values(conv.into, conv.taps)) * sizeof(float));
    const Cancellation cancellation;
    at::parallel_for(0, conv.batch * blocks_down * blocks_across, 1, [&](int64_t begin, int64_t end) {
      const int64_t thread = at::get_thread_num();
      float* own = static_cast<float*>(scratch.get()) + thread * Own::values(conv.into, conv.taps);
      double* count = sums.empty() ? nullptr : sums.data() + thread * conv.batch * 2 * conv.out;
      for (int64_t index = begin; index < end && !cancellation.is_asked(); ++index) block(index, own, count);
      if (!std::is_same_v<Value, float>) at::native::cpublas::brgemm_release(true);
    });
    cancellation.check();
    // In the order of the threads, so that the result is the same in every run.
    for (size_t i = 0; i < sums.size(); ++i) conv.sums[i % static_cast<size_t>(conv.batch * 2 * conv.out)] += sums[i];
  }

 private:
  void block(int64_t index, float* own, double* sums) const {
    const int64_t sample = index / (blocks_down * blocks_across), place = index % (blocks_down * blocks_across);
    const int64_t tile_row = first_tile + place / blocks_across * kTilesDown, tile_column = place % blocks_across * kTilesAcross;
    float* patch = own;
    float* product = patch + Own::patch;
    float* pixels = product + Own::product;
    Value* tiles = reinterpret_cast<Value*>(pixels + Own::tile);
    constexpr auto gathered = Case::kSide == 4 ? gather_direct : gather_upsampled;
    const int64_t there = conv.taps - conv.missing, rows = rows_of<Value>(conv.into, conv.taps);
    const int64_t depth = there * padded(conv.into);
    for (int64_t frame = 0; frame < there; ++frame) {
      for (int64_t channel = 0; channel < conv.into; channel += TW_BLOCK) {
        const int64_t channels = std::min<int64_t>(TW_BLOCK, conv.into - channel);
        fill(patch, conv.inputs[frame], sample, tile_row * Case::kStep - 1, tile_column * Case::kStep - 1, channel, channels);
        for (int64_t tile = 0; tile < kTiles; ++tile) {
          const int64_t corner =
              (tile / kTilesAcross * patch_columns<Case> + tile % kTilesAcross) * Case::kStep * TW_BLOCK;
          transform_one(Case{}, patch + corner, patch_columns<Case> * TW_BLOCK,
                        tiles + tile * depth + frame * padded(conv.into) + channel, kTiles * depth, channels);
        }
      }
    }
    const int64_t last = conv.out_first + conv.out_rows;
    for (int64_t channel = 0; channel < conv.out; channel += TW_BLOCK) {
      const int64_t channels = std::min<int64_t>(TW_BLOCK, conv.out - channel);
      const Value* laid = static_cast<const Value*>(conv.weights) + channel * points<Case> * conv.taps * rows;
      for (int64_t point = 0; point < points<Case>; ++point)
        multiply(tiles + point * kTiles * depth, laid + (point * conv.taps + conv.missing) * rows * TW_BLOCK,
                 product + point * kTiles * TW_BLOCK, there * rows, depth, channels);
      double* sum = sums == nullptr ? nullptr : sums + sample * 2 * conv.out + channel;
      for (int64_t tile = 0; tile < kTiles; ++tile) {
        const int64_t row = 2 * (tile_row + tile / kTilesAcross), column = 2 * (tile_column + tile % kTilesAcross);
        if (row >= last || column >= out_width) continue;
        gathered(product + tile * TW_BLOCK, pixels, channels);
        if (row >= conv.out_first && row + 2 <= last && column + 2 <= out_width) {
          const int64_t at = ((row - conv.out_first) * out_width + column) * conv.out + channel;
          finish_tile(pixels, conv.bias + channel, conv.add == nullptr ? nullptr : conv.add + sample * conv.add_stride + at,
                      conv.output == nullptr ? nullptr : conv.output + sample * conv.output_stride + at, conv.out, out_width * conv.out,
                      sum, sum + conv.out, channels);
          continue;
        }
        for (int64_t pixel = 0; pixel < 4; ++pixel) {
          const int64_t y = row + pixel / 2, x = column + pixel % 2;
          if (y < conv.out_first || y >= last || x >= out_width) continue;
          const int64_t at = ((y - conv.out_first) * out_width + x) * conv.out + channel;
          finish(pixels + pixel * TW_BLOCK, conv.bias + channel, conv.add == nullptr ? nullptr : conv.add + sample * conv.add_stride + at,
                 conv.output == nullptr ? nullptr : conv.output + sample * conv.output_stride + at, sum, sum + conv.out, channels);
        }
      }
    }
  }

  // The block's input after scale, shift and SiLU, with zeros beyond the picture.
  void fill(float* patch, const float* input, int64_t sample, int64_t top, int64_t left, int64_t channel, int64_t channels) const {
    const float* scale = conv.scale == nullptr ? nullptr : conv.scale + sample * conv.into + channel;
    const float* shift = conv.scale == nullptr ? nullptr : conv.shift + sample * conv.into + channel;
    for (int64_t y = top; y < top + patch_rows<Case>; ++y) {
      for (int64_t x = left; x < left + patch_columns<Case>; ++x, patch += TW_BLOCK) {
        // A row that is not stored belongs to tiles that are not kept.
        if (y < conv.first || y >= std::min(conv.height, conv.first + conv.rows) || x < 0 || x >= conv.width) {
          std::fill_n(patch, padded(channels), 0.0f);
        } else {
          const float* from = input + ((sample * conv.rows + y - conv.first) * conv.width + x) * conv.into + channel;
          prepare(patch, from, scale, shift, conv.silu != 0, channels);
        }
      }
    }
  }

  const tw_convolution& conv;
  int64_t out_width, first_tile, down, across, blocks_down, blocks_across;
};

int64_t point_count(int32_t upsample) { return upsample != 0 ? points<Upsampled> : points<Direct>; }

// One direction of the weights' transform.
void lay_out(const double* in, int stride, int32_t upsample, double* out, int apart) {
  const double a = in[0], b = in[stride], c = in[2 * stride];
  if (upsample != 0) {
    out[0] = a, out[apart] = a + b + c, out[2 * apart] = c;
  } else {
    out[0] = a, out[apart] = (a + b + c) / 2, out[2 * apart] = (a - b + c) / 2, out[3 * apart] = c;
  }
}

// The place of an input channel's row, of the output channel's column.
template <typename Value>
TW_INLINE int64_t place(int64_t row, int64_t column) {
  return sizeof(Value) == 2 ? row / 2 * 2 * TW_BLOCK + 2 * column + row % 2 : row * TW_BLOCK + column;
}

void set(float* to, double value) { *to = static_cast<float>(value); }
void set(uint16_t* to, double value) { *to = c10::BFloat16(static_cast<float>(value)).x; }

template <typename Value>
void lay_out_all(const float* weights, int64_t into, int64_t out, int32_t taps, int32_t upsample, Value* laid_out) {
  const int side = upsample != 0 ? 3 : 4;
  const int64_t rows = rows_of<Value>(into, taps);
  std::fill_n(laid_out, tw_winograd_values(into, out, taps, upsample, sizeof(Value) == 2), Value{});
  at::parallel_for(0, out, 1, [&](int64_t begin, int64_t end) {
    for (int64_t to = begin; to < end; ++to) {
      Value* block = laid_out + to / TW_BLOCK * TW_BLOCK * taps * rows * side * side;
      for (int64_t from = 0; from < into; ++from) {
        for (int64_t tap = 0; tap < taps; ++tap) {
          double values[9], half[12] = {}, whole[16];
          std::copy_n(weights + ((to * into + from) * taps + tap) * 9, 9, values);
          for (int x = 0; x < 3; ++x) lay_out(values + x, 3, upsample, half + x, 3);
          for (int y = 0; y < side; ++y) lay_out(half + 3 * y, 1, upsample, whole + side * y, 1);
          for (int point = 0; point < side * side; ++point)
            set(block + place<Value>((point * taps + tap) * rows + from, to % TW_BLOCK), whole[point]);
        }
      }
    }
  });
}

}  // namespace

int64_t tw_winograd_values(int64_t into, int64_t out, int32_t taps, int32_t upsample, int32_t bf16) noexcept {
  const int64_t rows = bf16 != 0 ? rows_of<uint16_t>(into, taps) : rows_of<float>(into, taps);
  return (out + TW_BLOCK - 1) / TW_BLOCK * TW_BLOCK * taps * rows * point_count(upsample);
}

void tw_winograd_weights(const float* weights, int64_t into, int64_t out, int32_t taps, int32_t upsample, int32_t bf16,
                         void* laid_out) noexcept {
  if (bf16 != 0) lay_out_all(weights, into, out, taps, upsample, static_cast<uint16_t*>(laid_out));
  else lay_out_all(weights, into, out, taps, upsample, static_cast<float*>(laid_out));
}

int64_t tw_winograd_scratch(int64_t into, int32_t taps, int32_t upsample, int32_t bf16) noexcept {
  const auto values = [&](auto of) {
    using Value = decltype(of);
    return upsample != 0 ? Scratch<Upsampled, Value>::values(into, taps) : Scratch<Direct, Value>::values(into, taps);
  };
  return at::get_num_threads() * (bf16 != 0 ? values(uint16_t{}) : values(float{})) * static_cast<int64_t>(sizeof(float));
}

int tw_winograd_convolve(const tw_convolution* convolution, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const tw_convolution& of = *convolution;
    if (of.bf16 != 0) of.upsample != 0 ? Blocks<Upsampled, uint16_t>(of).run() : Blocks<Direct, uint16_t>(of).run();
    else of.upsample != 0 ? Blocks<Upsampled, float>(of).run() : Blocks<Direct, float>(of).run();
  });
}
