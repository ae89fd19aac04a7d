#include "memory.h"
#include "device_allocator.h"
#include "guarded.h"

#include <ATen/Context.h>
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cstring>

namespace {

// Set once, before the first call of what follows. Never destroyed: tensors may outlive every static.
tw_allocate host_allocate;
tw_release host_release;
c10::Allocator* before;

// oneDNN keeps blocks without a deleter and gives them to whichever allocator is current, so that some may be older than ours.
void release(void* data) {
  if (host_release(data) == 0 && data != nullptr) before->raw_deallocate(data);
}

struct HostAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = nullptr;
    const char* refused = bytes == 0 ? nullptr : host_allocate(bytes, &data);
    TORCH_CHECK_WITH(OutOfMemoryError, refused == nullptr, refused, ": tried to allocate ", bytes, " bytes");
    return {data, data, &release, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

c10::DeviceAllocator& gpu() {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return *c10::getDeviceAllocator(c10::DeviceType::CUDA);
}

// All allocators that libtorch has for GPUs begin in this way; a fraction that is none says that one does not.
CachingAllocator& limited_gpu() {
  auto* allocator = static_cast<CachingAllocator*>(&gpu());
  const auto has_sound_fraction = [&] {
    const double fraction = allocator->getMemoryFraction(0);
    return fraction > 0 && fraction <= 1;
  };
  TORCH_CHECK(has_sound_fraction(), "libtorch's allocator has no limit");
  return *allocator;
}

}  // namespace

int tw_cpu_install(tw_allocate allocate, tw_release release, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    static auto* allocator = [=] {
      host_allocate = allocate;
      host_release = release;
      before = c10::GetCPUAllocator();
      return new HostAllocator;
    }();
    c10::SetCPUAllocator(allocator, /*priority=*/100);
  });
}

int tw_gpu_memory(int device, tw_memory* out, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const auto stats = gpu().getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto count = [](int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(value, 0)); };
    // Index 0 is the aggregate over large and small blocks.
    *out = {count(stats.allocated_bytes[0].current), count(stats.allocated_bytes[0].peak),
            count(stats.reserved_bytes[0].current), count(stats.allocation[0].allocated),
            count(stats.num_device_alloc), 0.0};
    if (out->held != 0) {
      out->fragmentation = static_cast<double>(count(stats.inactive_split_bytes[0].current)) / static_cast<double>(out->held);
    }
  });
}

int tw_gpu_reset_peak(int device, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] { gpu().resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

int tw_gpu_empty_cache(char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [] {
    gpu().emptyCache();
    // Pinned memory, if the back end has an allocator for it.
    if (auto* pinned = at::getHostAllocator(c10::DeviceType::CUDA)) pinned->empty_cache();
  });
}

int tw_gpu_free_and_total(int device, uint64_t* free_bytes, uint64_t* total_bytes, char* error,
                          size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const auto [free, total] = gpu().getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    *free_bytes = free;
    *total_bytes = total;
  });
}

int tw_gpu_fraction(int device, double* fraction, char* error, size_t error_length) noexcept {
  return guarded(error, error_length,
                 [&] { *fraction = limited_gpu().getMemoryFraction(static_cast<c10::DeviceIndex>(device)); });
}

int tw_gpu_set_fraction(int device, double fraction, char* error, size_t error_length) noexcept {
  return guarded(error, error_length,
                 [=] { limited_gpu().setMemoryFraction(fraction, static_cast<c10::DeviceIndex>(device)); });
}
