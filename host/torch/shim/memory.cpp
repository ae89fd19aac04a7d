#include "memory.h"
#include "guarded.h"

#include <ATen/Context.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/alloc_cpu.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <atomic>
#include <cstring>

namespace {

std::atomic<uint64_t> in_use{0}, peak{0}, allocations{0}, limit{0};

// libtorch's own alignment; the block's size waits in front of the data, since the deleter is not told it.
constexpr size_t kHeader = 64;

void give_back(void* data) {
  if (data == nullptr) return;
  char* base = static_cast<char*>(data) - kHeader;
  in_use.fetch_sub(*reinterpret_cast<uint64_t*>(base), std::memory_order_relaxed);
  c10::free_cpu(base);
}

struct CountingAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &give_back, c10::Device(c10::DeviceType::CPU)};
    const uint64_t now = in_use.fetch_add(bytes, std::memory_order_relaxed) + bytes;
    const uint64_t most = limit.load(std::memory_order_relaxed);
    if (most != 0 && now > most) {
      in_use.fetch_sub(bytes, std::memory_order_relaxed);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "memory limit: tried to allocate ", bytes, " bytes");
    }
    char* base;
    try {
      base = static_cast<char*>(c10::alloc_cpu(bytes + kHeader));
    } catch (...) {
      in_use.fetch_sub(bytes, std::memory_order_relaxed);
      throw;
    }
    *reinterpret_cast<uint64_t*>(base) = bytes;
    allocations.fetch_add(1, std::memory_order_relaxed);
    uint64_t before = peak.load(std::memory_order_relaxed);
    while (before < now && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
    }
    void* data = base + kHeader;
    return {data, data, &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &give_back; }

  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

c10::DeviceAllocator& gpu() {
  at::globalContext().lazyInitDevice(c10::DeviceType::CUDA);
  return *c10::getDeviceAllocator(c10::DeviceType::CUDA);
}

}  // namespace

int tw_cpu_install(char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [] {
    // Never destroyed: tensors may outlive every static.
    static auto* allocator = new CountingAllocator;
    c10::SetCPUAllocator(allocator, /*priority=*/100);
  });
}

void tw_cpu_set_limit(uint64_t bytes) noexcept { limit.store(bytes, std::memory_order_relaxed); }

void tw_cpu_memory(tw_memory* out) noexcept {
  const uint64_t now = in_use.load(std::memory_order_relaxed);
  const uint64_t served = allocations.load(std::memory_order_relaxed);
  *out = {now, std::max(now, peak.load(std::memory_order_relaxed)), now, served, served};
}

void tw_cpu_reset_peak() noexcept { peak.store(in_use.load(std::memory_order_relaxed), std::memory_order_relaxed); }

int tw_gpu_memory(int device, tw_memory* out, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const auto stats = gpu().getDeviceStats(static_cast<c10::DeviceIndex>(device));
    const auto count = [](int64_t value) { return static_cast<uint64_t>(std::max<int64_t>(value, 0)); };
    // Index 0 is the aggregate over large and small blocks.
    *out = {count(stats.allocated_bytes[0].current), count(stats.allocated_bytes[0].peak),
            count(stats.reserved_bytes[0].current), count(stats.allocation[0].allocated),
            count(stats.num_device_alloc)};
  });
}

int tw_gpu_reset_peak(int device, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [&] { gpu().resetPeakStats(static_cast<c10::DeviceIndex>(device)); });
}

int tw_gpu_empty_cache(char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [] { gpu().emptyCache(); });
}

int tw_gpu_free_and_total(int device, uint64_t* free_bytes, uint64_t* total_bytes, char* error,
                          size_t error_length) noexcept {
  return guarded(error, error_length, [&] {
    const auto [free, total] = gpu().getMemoryInfo(static_cast<c10::DeviceIndex>(device));
    *free_bytes = free;
    *total_bytes = total;
  });
}
