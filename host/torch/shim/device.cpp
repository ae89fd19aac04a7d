#include "device.h"
#include "guarded.h"

#include <ATen/Context.h>
#include <ATen/SDPBackend.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_fused_sdp_choice.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace {

constexpr auto kGpu = c10::DeviceType::CUDA;

const at::Tensor& tensor(const void* pointer) { return *static_cast<const at::Tensor*>(pointer); }

}  // namespace

int tw_gpu_synchronize(int device, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    c10::impl::VirtualGuardImpl(kGpu).synchronizeDevice(static_cast<c10::DeviceIndex>(device));
  });
}

void* tw_event_create() noexcept { return new c10::Event(kGpu); }

int tw_event_record(void* event, int device, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const c10::Device on(kGpu, static_cast<c10::DeviceIndex>(device));
    static_cast<c10::Event*>(event)->record(c10::impl::VirtualGuardImpl(kGpu).getStream(on));
  });
}

int tw_event_wait(void* event, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] { static_cast<c10::Event*>(event)->synchronize(); });
}

void tw_event_destroy(void* event) noexcept { delete static_cast<c10::Event*>(event); }

int tw_gpu_forbid_tf32(char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [] {
    for (const auto op : {at::Float32Op::CONV, at::Float32Op::MATMUL}) {
      at::globalContext().setFloat32Precision(at::Float32Backend::CUDA, op, at::Float32Precision::IEEE);
    }
  });
}

int tw_cpu_leave_nnpack_out(char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [] { at::globalContext().setUserEnabledNNPACK(false); });
}

int tw_gpu_is_f32_exact(int* exact, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    *exact = 1;
    for (const auto op : {at::Float32Op::CONV, at::Float32Op::MATMUL}) {
      const auto precision = at::globalContext().float32Precision(at::Float32Backend::CUDA, op);
      *exact &= precision == at::Float32Precision::IEEE ? 1 : 0;
    }
  });
}

int tw_has_fused_attention(const void* query, const void* key, const void* value, int* fused, char* error,
                           size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const auto choice = at::_fused_sdp_choice(tensor(query), tensor(key), tensor(value));
    *fused = choice != static_cast<int64_t>(at::SDPBackend::math);
  });
}
