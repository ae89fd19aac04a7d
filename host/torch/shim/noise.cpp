#include "noise.h"
#include "guarded.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

int tw_noise(uint64_t seed, const int64_t* shape, int64_t axes, void** result, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const at::Tensor tensor = at::empty(at::IntArrayRef(shape, static_cast<size_t>(axes)), at::kFloat);
    *result = new at::Tensor(tensor.normal_(0, 1, at::detail::createCPUGenerator(seed)));
  });
}
