#include "noise.h"
#include "guarded.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

int tw_generator_create(uint64_t seed, void** generator, char* error, size_t error_length) noexcept {
  return guarded(error, error_length,
                 [=] { *generator = new at::Generator(at::detail::createCPUGenerator(seed)); });
}

void tw_generator_destroy(void* generator) noexcept { delete static_cast<at::Generator*>(generator); }

int tw_generator_draw(void* generator, const int64_t* shape, int64_t axes, void** result, char* error,
                      size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const at::Tensor tensor = at::empty(at::IntArrayRef(shape, static_cast<size_t>(axes)), at::kFloat);
    *result = new at::Tensor(tensor.normal_(0, 1, *static_cast<at::Generator*>(generator)));
  });
}
