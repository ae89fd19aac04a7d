// What libtorch asks of a GPU's runtime: hooks, guards, streams, events; and the part of CUDA's own interface that tells
// facts about devices.
#include "device.h"
#include "script.h"

#include <ATen/detail/CUDAHooksInterface.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <thread>

namespace {

constexpr auto kCuda = c10::DeviceType::CUDA;

int index_of(c10::Device device) { return device.has_index() ? device.index() : fake::current_device(); }

struct Event {
  fake::Clock::time_point ready;
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kCuda; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    if (device.has_index()) fake::set_current_device(device.index());
    return before;
  }
  c10::Device getDevice() const override { return {kCuda, static_cast<c10::DeviceIndex>(fake::current_device())}; }
  void setDevice(c10::Device device) const override {
    if (device.has_index()) fake::set_current_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index() && device.index() < script().devices) fake::set_current_device(device.index());
  }
  c10::Stream getStream(c10::Device device) const override {
    const int index = index_of(device);
    return stream(index, fake::current_stream(index));
  }
  c10::Stream getDefaultStream(c10::Device device) const override { return stream(index_of(device), 0); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    static std::atomic<c10::StreamId> last{0};
    return stream(index_of(device), 1 + last++ % 32);
  }
  c10::Stream exchangeStream(c10::Stream to) const override {
    const c10::Stream before = getStream(to.device());
    fake::set_current_stream(to.device_index(), to.id());
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return static_cast<c10::DeviceIndex>(script().devices); }

  void record(void** event, const c10::Stream& on, c10::DeviceIndex, c10::EventFlag) const override {
    fake::check(on.device_index());
    if (*event == nullptr) *event = new Event;
    static_cast<Event*>(*event)->ready =
        script().has_early_events ? fake::Clock::now() : fake::end_of(on.device_index(), on.id());
  }
  void block(void* event, const c10::Stream& waiting) const override {
    if (event != nullptr) fake::wait_in_stream(waiting.device_index(), waiting.id(), static_cast<Event*>(event)->ready);
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || static_cast<Event*>(event)->ready <= fake::Clock::now();
  }
  void destroyEvent(void* event, c10::DeviceIndex) const noexcept override { delete static_cast<Event*>(event); }
  void synchronizeEvent(void* event) const override {
    if (event != nullptr) std::this_thread::sleep_until(static_cast<Event*>(event)->ready);
  }
  double elapsedTime(void* start, void* end, c10::DeviceIndex) const override {
    const auto elapsed = static_cast<Event*>(end)->ready - static_cast<Event*>(start)->ready;
    return std::chrono::duration<double, std::milli>(elapsed).count();
  }
  bool queryStream(const c10::Stream& of) const override {
    return fake::end_of(of.device_index(), of.id()) <= fake::Clock::now();
  }
  void synchronizeStream(const c10::Stream& of) const override {
    std::this_thread::sleep_until(fake::end_of(of.device_index(), of.id()));
    fake::check(of.device_index());
  }
  void synchronizeDevice(c10::DeviceIndex device) const override { fake::synchronize(device); }

 private:
  static c10::Stream stream(int device, c10::StreamId id) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(kCuda, static_cast<c10::DeviceIndex>(device)), id);
  }
};

// Pinned memory: the host's, which serves any device, up to the bytes that the script allows.
struct PinnedMemory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    const bool fits = (in_use += bytes) <= script().pinned;
    if (!fits) in_use -= bytes;
    TORCH_CHECK(fits, "CUDA error: out of memory");
    auto* block = new Block{c10::GetCPUAllocator()->allocate(bytes), bytes};
    return {block->data.get(), block, &release, c10::Device(c10::DeviceType::CPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }

 private:
  struct Block {
    c10::DataPtr data;
    size_t bytes;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    in_use -= block->bytes;
    delete block;
  }
  static inline std::atomic<uint64_t> in_use{0};
};

struct Hooks final : at::CUDAHooksInterface {
  explicit Hooks(at::CUDAHooksArgs) {}

  void init() const override { TORCH_CHECK(script().devices > 0, "No CUDA GPUs are available"); }
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return script().devices > 0; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  bool hasCUDA() const override { return script().devices > 0; }
  bool hasCUDART() const override { return true; }
  int getNumGPUs() const override { return script().devices; }
  c10::DeviceIndex deviceCount() const override { return static_cast<c10::DeviceIndex>(script().devices); }
  c10::DeviceIndex current_device() const override { return static_cast<c10::DeviceIndex>(fake::current_device()); }
  void setCurrentDevice(c10::DeviceIndex device) const override { fake::set_current_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    const auto before = current_device();
    fake::set_current_device(device);
    return before;
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchangeDevice(device); }
  void deviceSynchronize(c10::DeviceIndex device) const override { fake::synchronize(device); }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    static auto* memory = new PinnedMemory;
    return memory;
  }
  c10::Allocator* getCUDADeviceAllocator() const override { return &fake::allocator(); }
  std::string showConfig() const override { return "fake GPU"; }
};

C10_REGISTER_GUARD_IMPL(CUDA, Guard)

}  // namespace

namespace at {
C10_REGISTER_TYPED_CLASS(CUDAHooksRegistry, "CUDAHooks", Hooks)
}  // namespace at

// The signatures are those of cuda_runtime_api.h.
extern "C" {

enum { kSuccess = 0, kInvalidValue = 1, kNoDevice = 100 };
enum { kMultiprocessors = 16, kIntegrated = 18, kMajor = 75, kMinor = 76 };

int cudaGetDeviceCount(int* count) {
  *count = script().devices;
  return *count > 0 ? kSuccess : kNoDevice;
}

const char* cudaGetErrorString(int error) {
  return error == kNoDevice ? "no CUDA-capable device is detected" : error == kSuccess ? "no error" : "invalid argument";
}

int cudaDriverGetVersion(int* version) {
  *version = 13000;
  return kSuccess;
}

int cudaRuntimeGetVersion(int* version) { return cudaDriverGetVersion(version); }

// cudnn.h's.
size_t cudnnGetVersion() { return 91900; }

int cudaDeviceGetAttribute(int* value, int attribute, int device) {
  if (device < 0 || device >= script().devices) return kInvalidValue;
  switch (attribute) {
    case kMultiprocessors: *value = 40; return kSuccess;
    case kIntegrated: *value = script().integrated; return kSuccess;
    case kMajor: return std::sscanf(script().arch.c_str(), "sm_%1d", value) == 1 ? kSuccess : kInvalidValue;
    case kMinor: return std::sscanf(script().arch.c_str(), "sm_%*1d%1d", value) == 1 ? kSuccess : kInvalidValue;
    default: return kInvalidValue;
  }
}

int cudaDeviceGetPCIBusId(char* text, int length, int device) {
  if (device < 0 || device >= script().devices) return kInvalidValue;
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", device + 1);
  return kSuccess;
}

int cudaGetDeviceProperties(void* properties, int device) {
  if (device < 0 || device >= script().devices) return kInvalidValue;
  // The name is the first field.
  std::snprintf(static_cast<char*>(properties), 256, "Fake GPU %d", device);
  return kSuccess;
}

// HIP's, as in hip_runtime_api.h.

int hipDriverGetVersion(int* version) {
  *version = 70253211;
  return kSuccess;
}

int hipRuntimeGetVersion(int* version) { return hipDriverGetVersion(version); }

// miopen.h's.
int miopenGetVersion(size_t* major, size_t* minor, size_t* patch) {
  *major = 3, *minor = 5, *patch = 1;
  return kSuccess;
}

int hipGetDeviceCount(int* count) { return cudaGetDeviceCount(count); }

const char* hipGetErrorString(int error) { return error == kNoDevice ? "no ROCm-capable device is detected" : cudaGetErrorString(error); }

int hipDeviceGetPCIBusId(char* text, int length, int device) { return cudaDeviceGetPCIBusId(text, length, device); }

int hipDeviceGetAttribute(int* value, int attribute, int device) {
  constexpr int kHipIntegrated = 16, kHipMultiprocessors = 63;
  if (attribute == kHipIntegrated) return cudaDeviceGetAttribute(value, kIntegrated, device);
  if (attribute == kHipMultiprocessors) return cudaDeviceGetAttribute(value, kMultiprocessors, device);
  return kInvalidValue;
}

int hipGetDevicePropertiesR0600(void* properties, int device) {
  if (device < 0 || device >= script().devices) return kInvalidValue;
  std::snprintf(static_cast<char*>(properties), 256, "Fake Radeon %d", device);
  if (script().arch != "none") std::strcpy(static_cast<char*>(properties) + 1160, "gfx1151");
  return kSuccess;
}
}
