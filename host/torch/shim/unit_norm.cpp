#include "unit_norm.h"

#include <algorithm>
#include <cmath>

#include "guarded.h"
#include "share.h"
#include "vectors.h"

namespace {

// As in torch.nn.functional.normalize: a pixel of zeros stays one.
constexpr float kLeast = 1e-12f;

// Pixels that a thread takes at once.
constexpr int64_t kGrain = 256;

TW_VECTORS void normalize(const float* from, const float* gamma, bool activate, float* to, int64_t channels) {
  Lanes squares{};
  int64_t c = 0;
  for (; c + kLanes <= channels; c += kLanes) squares += lanes(from + c) * lanes(from + c);
  float sum = 0;
  for (int lane = 0; lane < kLanes; ++lane) sum += squares[lane];
  for (; c < channels; ++c) sum += from[c] * from[c];
  const float factor = std::sqrt(static_cast<float>(channels)) / std::max(std::sqrt(sum), kLeast);
  for (c = 0; c + kLanes <= channels; c += kLanes) {
    const Lanes value = lanes(from + c) * factor * lanes(gamma + c);
    lanes(to + c) = activate ? silu(value) : value;
  }
  for (; c < channels; ++c) {
    const float value = from[c] * factor * gamma[c];
    to[c] = activate ? value / (1.0f + std::exp(-value)) : value;
  }
}

}  // namespace

int tw_unit_norm(const tw_unit_norm_job* job, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    each_in_blocks(job->pixels, kGrain, [&](int64_t pixel) {
      normalize(job->input + pixel * job->channels, job->gamma, job->silu != 0, job->output + pixel * job->channels, job->channels);
    });
  });
}
