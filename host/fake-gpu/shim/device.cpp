#include "device.h"

#include "device_allocator.h"
#include "script.h"

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <thread>
#include <unordered_map>

namespace fake {
namespace {

constexpr size_t kAlignment = 512;
constexpr int64_t kLarge = 1 << 20;
constexpr int kMostDevices = 16;

thread_local int current = 0;
thread_local std::array<c10::StreamId, kMostDevices> streams{};
// The device that the CPU's operators allocate on; negative on the CPU itself.
thread_local int diverted_to = -1;
// The operation at hand.
thread_local const char* operation = "";

struct Block {
  int device;
  // As it was asked for, and as it is held.
  size_t size;
  size_t held;
};

struct Memory {
  size_t in_use = 0;
  size_t peak = 0;
  size_t held = 0;
  int64_t allocations = 0;
  int64_t from_driver = 0;
  double fraction = 1;
  // Held and not in use, by size.
  std::multimap<size_t, void*> cached;
};

struct Device {
  Memory memory;
  std::map<c10::StreamId, Clock::time_point> ends;
};

// Never destroyed: tensors may outlive every static.
struct State {
  std::mutex mutex;
  std::array<Device, kMostDevices> devices;
  std::unordered_map<void*, Block> blocks;
  int64_t large = 0;
  std::atomic<int64_t> operations{0};
  std::atomic<bool> lost{false};
};

State& state() {
  static State* state = new State;
  return *state;
}

std::string in_units(size_t bytes) {
  char text[64];
  const double mib = static_cast<double>(bytes) / (1 << 20);
  if (mib >= 1024) {
    std::snprintf(text, sizeof text, "%.2f GiB", mib / 1024);
  } else {
    std::snprintf(text, sizeof text, "%.2f MiB", mib);
  }
  return text;
}

void free_cached(Memory& memory) {
  for (auto [size, data] : memory.cached) {
    memory.held -= size;
    std::free(data);
  }
  memory.cached.clear();
}

[[noreturn]] void out_of_memory(int device, const Memory& memory, size_t bytes) {
  const std::string& text = script().oom_text;
  TORCH_CHECK(text.empty(), text);
  C10_THROW_ERROR(
      OutOfMemoryError,
      c10::str("CUDA out of memory. Tried to allocate ", in_units(bytes), ". GPU ", device, " has a total capacity of ",
               in_units(script().memory), " of which ", in_units(script().memory - memory.held), " is free."));
}

void* take(int device, size_t bytes) {
  if (bytes == 0) return nullptr;
  const size_t size = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  State& all = state();
  std::lock_guard lock(all.mutex);
  Memory& memory = all.devices[device].memory;
  if (static_cast<int64_t>(bytes) >= kLarge && ++all.large == script().oom) out_of_memory(device, memory, bytes);
  void* data = nullptr;
  size_t taken = size;
  const auto cached = memory.cached.lower_bound(size);
  // A cached block may be somewhat larger than what it serves. libtorch's are split, so that statistics count what is served.
  if (cached != memory.cached.end() && cached->first <= size + size / 4) {
    std::tie(taken, data) = *cached;
    memory.cached.erase(cached);
  } else {
    const double fraction = script().ignores_cap ? 1 : memory.fraction;
    const auto most = static_cast<size_t>(fraction * static_cast<double>(script().memory));
    if (memory.held + size > most) free_cached(memory);
    if (memory.held + size > most) out_of_memory(device, memory, bytes);
    data = std::aligned_alloc(kAlignment, size);
    if (data == nullptr) throw std::bad_alloc();
    memory.held += size;
    ++memory.from_driver;
  }
  all.blocks[data] = {device, size, taken};
  memory.in_use += size;
  if (script().traces && memory.in_use > memory.peak && size >= static_cast<size_t>(kLarge)) {
    std::fprintf(stderr, "fake GPU: %s for %s, %s in all\n", in_units(size).c_str(), operation, in_units(memory.in_use).c_str());
  }
  memory.peak = std::max(memory.peak, memory.in_use);
  ++memory.allocations;
  return data;
}

// False if the address is none of the devices'.
bool give_back(void* data) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  const auto found = all.blocks.find(data);
  if (found == all.blocks.end()) return false;
  const Block block = found->second;
  all.blocks.erase(found);
  Memory& memory = all.devices[block.device].memory;
  memory.in_use -= block.size;
  memory.cached.emplace(block.held, data);
  return true;
}

void release(void* data) { give_back(data); }

struct DeviceMemory final : CachingAllocator {
  c10::DataPtr allocate(size_t bytes) override {
    const int device = current;
    check(device);
    void* data = take(device, bytes);
    return {data, data, &release, c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(device))};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    State& all = state();
    std::lock_guard lock(all.mutex);
    for (Device& device : all.devices) free_cached(device.memory);
  }
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    TORCH_CHECK(device >= 0 && device < script().devices, "Invalid device argument ", int{device});
    State& all = state();
    std::lock_guard lock(all.mutex);
    const Memory& memory = all.devices[device].memory;
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto count = [](size_t value) { return static_cast<int64_t>(value); };
    stats.allocated_bytes[0].current = count(memory.in_use);
    stats.allocated_bytes[0].peak = static_cast<int64_t>(script().peak * static_cast<double>(memory.peak));
    stats.reserved_bytes[0].current = count(memory.held);
    stats.allocation[0].allocated = memory.allocations;
    stats.num_device_alloc = memory.from_driver;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex) override {}
  void resetPeakStats(c10::DeviceIndex device) override {
    State& all = state();
    std::lock_guard lock(all.mutex);
    Memory& memory = all.devices[device].memory;
    memory.peak = memory.in_use;
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    State& all = state();
    std::lock_guard lock(all.mutex);
    return {script().memory - all.devices[device].memory.held, script().memory};
  }

  void* raw_alloc(size_t bytes) override { return take(current, bytes); }
  void* raw_alloc_with_stream(size_t bytes, void*) override { return take(current, bytes); }
  void raw_delete(void* data) override { release(data); }
  void init(int) override {}
  double getMemoryFraction(c10::DeviceIndex device) override { return state().devices[device].memory.fraction; }
  void setMemoryFraction(double fraction, c10::DeviceIndex device) override {
    TORCH_CHECK(fraction >= 0 && fraction <= 1, "invalid fraction:", fraction, ". Please set within [0, 1].");
    State& all = state();
    std::lock_guard lock(all.mutex);
    all.devices[device].memory.fraction = fraction;
  }
};

// The CPU's allocator before a device was first used.
c10::Allocator* host_before = nullptr;

void release_anywhere(void* data) {
  if (data != nullptr && !give_back(data)) host_before->raw_deallocate(data);
}

// The CPU's allocator: what the operators of a diverted thread allocate is the device's.
struct HostMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    if (diverted_to < 0) return host_before->allocate(bytes);
    void* data = take(diverted_to, bytes);
    return {data, data, &release_anywhere, c10::Device(c10::DeviceType::CPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release_anywhere; }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

// Puts it in front of the allocator that is there when a device is first used.
void install() {
  [[maybe_unused]] static const bool installed = [] {
    host_before = c10::GetCPUAllocator();
    c10::SetCPUAllocator(new HostMemory, /*priority=*/255);
    return true;
  }();
}

}  // namespace

int current_device() { return current; }

void set_current_device(int device) {
  TORCH_CHECK(device >= 0 && device < script().devices, "CUDA error: invalid device ordinal");
  current = device;
}

c10::StreamId current_stream(int device) { return streams[device]; }

void set_current_stream(int device, c10::StreamId stream) { streams[device] = stream; }

void check(int device) {
  TORCH_CHECK(device != script().refuses, "CUDA error: no kernel image is available for execution on the device");
  TORCH_CHECK(!state().lost, "CUDA error: an illegal memory access was encountered");
}

void begin_operation(int device, const char* name) {
  operation = name;
  check(device);
  const int64_t number = ++state().operations;
  // A fault shows at the next call that waits.
  if (number == script().lost) state().lost = true;
  if (number == script().crashes) std::abort();
  while (script().hangs != 0 && number >= script().hangs) std::this_thread::sleep_for(std::chrono::seconds(1));
}

void enqueue(int device, double milliseconds) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  Clock::time_point& end = all.devices[device].ends[current_stream(device)];
  end = std::max(end, Clock::now()) + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double, std::milli>(milliseconds));
}

Clock::time_point end_of(int device, c10::StreamId stream) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  return all.devices[device].ends[stream];
}

void wait_in_stream(int device, c10::StreamId stream, Clock::time_point until) {
  State& all = state();
  std::lock_guard lock(all.mutex);
  Clock::time_point& end = all.devices[device].ends[stream];
  end = std::max(end, until);
}

void synchronize(int device) {
  Clock::time_point last;
  {
    State& all = state();
    std::lock_guard lock(all.mutex);
    for (const auto& [stream, end] : all.devices[device].ends) last = std::max(last, end);
  }
  std::this_thread::sleep_until(last);
  check(device);
}

c10::Allocator& allocator() {
  static auto* memory = new DeviceMemory;
  return *memory;
}

void leak(int device, size_t bytes) { take(device, bytes); }

Diverted::Diverted(int device) : before_(diverted_to) {
  install();
  diverted_to = device;
}

Diverted::~Diverted() { diverted_to = before_; }

namespace {
[[maybe_unused]] const bool registered = [] {
  c10::SetAllocator(c10::DeviceType::CUDA, &allocator(), /*priority=*/0);
  return true;
}();
}  // namespace

}  // namespace fake
