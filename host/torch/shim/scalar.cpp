#include "scalar.h"
#include "guarded.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/div.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>

#include <limits>

namespace {

// Counts its own references: the same tensor by another handle.
at::Tensor shared(const void* pointer) { return *static_cast<const at::Tensor*>(pointer); }

at::Tensor compute(int operation, at::Tensor tensor, double first, double second) {
  switch (operation) {
    case TW_ADD: return at::add(tensor, first);
    case TW_MULTIPLY: return at::mul(tensor, first);
    case TW_MULTIPLY_: return tensor.mul_(first);
    case TW_CLAMP: return at::clamp(tensor, first, second);
    case TW_CLAMP_MIN_: return tensor.clamp_min_(first);
    case TW_FILL_: return tensor.fill_(first);
    case TW_DIVIDE: return at::div(tensor, first);
    case TW_LINE: return at::add(at::scalar_tensor(second, tensor.options().device(at::kCPU)), tensor, first);
    default: TORCH_CHECK(false, "no operation ", operation);
  }
}

}  // namespace

int tw_with_scalar(int operation, const void* tensor, double first, double second, void** result, char* error,
                   size_t error_length) noexcept {
  return guarded(error, error_length,
                 [=] { *result = new at::Tensor(compute(operation, shared(tensor), first, second)); });
}

int tw_length(const void* tensor, int64_t axis, void** result, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    *result = new at::Tensor(at::linalg_vector_norm(shared(tensor), 2, at::IntArrayRef(axis), /*keepdim=*/true, at::kFloat));
  });
}

int tw_largest(const void* tensor, void** result, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const double infinity = std::numeric_limits<double>::infinity();
    *result = new at::Tensor(at::linalg_vector_norm(shared(tensor), infinity, at::OptionalIntArrayRef(), /*keepdim=*/false,
                                                    at::kFloat));
  });
}
