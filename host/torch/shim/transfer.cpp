#include "transfer.h"
#include "guarded.h"

#include <ATen/core/CachingHostAllocator.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <map>
#include <mutex>
#include <utility>

namespace {

constexpr auto kGpu = c10::DeviceType::CUDA;

const at::Tensor& tensor(const void* pointer) { return *static_cast<const at::Tensor*>(pointer); }

// The ways of copies. The bus carries both directions at once; copies behind an event begin when they may, whatever was queued
// before them.
enum class Way { kToDevice, kToHost, kBehindEvent };

c10::Stream stream_of(c10::Device device, Way way) {
  static std::mutex mutex;
  static std::map<std::pair<int, Way>, c10::Stream> streams;
  std::lock_guard lock(mutex);
  const auto key = std::make_pair(static_cast<int>(device.index()), way);
  auto found = streams.find(key);
  if (found == streams.end()) {
    found = streams.emplace(key, c10::impl::VirtualGuardImpl(kGpu).getStreamFromGlobalPool(device)).first;
  }
  return found->second;
}

// Makes a stream the current one of its device while it lives.
class OnStream {
 public:
  explicit OnStream(c10::Stream stream) : before_(c10::impl::VirtualGuardImpl(kGpu).exchangeStream(stream)) {}
  ~OnStream() { c10::impl::VirtualGuardImpl(kGpu).exchangeStream(before_); }
  OnStream(const OnStream&) = delete;
  OnStream& operator=(const OnStream&) = delete;

 private:
  c10::Stream before_;
};

}  // namespace

int tw_host_like(const void* like, void** result, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const at::Tensor& of = tensor(like);
    const auto options = of.options().device(c10::DeviceType::CPU);
    at::Tensor made;
    try {
      made = at::empty_strided(of.sizes(), of.strides(), options.pinned_memory(true));
    } catch (const c10::Error&) {
      // The system may allow little of it. A copy from or to other memory waits for the device.
      made = at::empty_strided(of.sizes(), of.strides(), options);
    }
    *result = new at::Tensor(std::move(made));
  });
}

int tw_pinned(uint64_t bytes, void** result, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const auto options = at::TensorOptions().dtype(at::kByte).pinned_memory(true);
    *result = new at::Tensor(at::empty({static_cast<int64_t>(bytes)}, options));
  });
}

int tw_pinned_empty_cache(char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [] {
    // Null if the back end has no allocator for it.
    if (auto* pinned = at::getHostAllocator(kGpu)) pinned->empty_cache();
  });
}

int tw_start_copy(void* to, const void* from, void* behind, void* end, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    auto& target = *static_cast<at::Tensor*>(to);
    const at::Tensor& source = tensor(from);
    const bool to_host = source.is_cuda();
    const c10::Device device = to_host ? source.device() : target.device();
    const c10::impl::VirtualGuardImpl guard(kGpu);
    const c10::Stream own = stream_of(device, behind != nullptr ? Way::kBehindEvent : to_host ? Way::kToHost : Way::kToDevice);
    c10::Event ready(kGpu);
    if (behind == nullptr) ready.record(guard.getStream(device));
    (behind == nullptr ? ready : *static_cast<c10::Event*>(behind)).block(own);
    const OnStream on(own);
    target.copy_(source, /*non_blocking=*/true);
    static_cast<c10::Event*>(end)->record(own);
  });
}

int tw_event_record_behind(void* event, int device, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const c10::Device on(kGpu, static_cast<c10::DeviceIndex>(device));
    static_cast<c10::Event*>(event)->record(stream_of(on, Way::kBehindEvent));
  });
}

int tw_event_block(void* event, int device, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const c10::Device on(kGpu, static_cast<c10::DeviceIndex>(device));
    static_cast<c10::Event*>(event)->block(c10::impl::VirtualGuardImpl(kGpu).getStream(on));
  });
}
