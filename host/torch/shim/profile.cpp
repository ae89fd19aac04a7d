#include "profile.h"
#include "guarded.h"

#include <ATen/record_function.h>
#include <kineto/ActivityType.h>
#include <kineto/libkineto.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include <memory>
#include <set>
#include <string>
#include <string_view>

namespace {

namespace profiler = torch::autograd::profiler;
using torch::profiler::impl::ActivityType;
using torch::profiler::impl::ProfilerConfig;
using torch::profiler::impl::ProfilerState;

// The kind of an event by Kineto's; −1 for one that is no work, such as an annotation that is seen a second time on the GPU.
int kind_of(const profiler::KinetoEvent& event) {
  switch (static_cast<libkineto::ActivityType>(event.activityType())) {
    case libkineto::ActivityType::CPU_OP:
    case libkineto::ActivityType::USER_ANNOTATION:
      return TW_OPERATOR;
    case libkineto::ActivityType::CUDA_RUNTIME:
    case libkineto::ActivityType::CUDA_DRIVER:
      return TW_CALL;
    case libkineto::ActivityType::CONCURRENT_KERNEL:
      return TW_KERNEL;
    case libkineto::ActivityType::GPU_MEMCPY:
    case libkineto::ActivityType::GPU_MEMSET:
      return TW_TRANSFER;
    default:
      return -1;
  }
}

// Kineto initializes its client, libtorch's profiler, from the thread that registered it alone, and prints an error from any other: the
// first thread that profiles takes the registration over.
void take_over_client() {
  static const bool done = [] {
    libkineto::ClientInterface* const client = libkineto::api().client();
    if (client != nullptr) libkineto::api().registerClient(client);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

int tw_profile_begin(int gpu, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    std::set<ActivityType> activities{ActivityType::CPU};
    if (gpu != 0) activities.insert(ActivityType::CUDA);
    take_over_client();
    const ProfilerConfig config(ProfilerState::KINETO);
    profiler::prepareProfiler(config, activities);
    profiler::enableProfiler(config, activities, {at::RecordScope::FUNCTION, at::RecordScope::USER_SCOPE});
  });
}

int tw_profile_end(void (*each)(const tw_event* event, void* of), void* of, char* error, size_t error_length) noexcept {
  return guarded(error, error_length, [=] {
    const std::unique_ptr<profiler::ProfilerResult> result = profiler::disableProfiler();
    if (each == nullptr) return;
    for (const profiler::KinetoEvent& event : result->events()) {
      const int kind = kind_of(event);
      if (kind < 0 || event.endNs() < event.startNs()) continue;
      const bool on_gpu = kind == TW_KERNEL || kind == TW_TRANSFER;
      const std::string name = event.name();
      tw_event found{};
      found.name = name.data();
      found.name_length = name.size();
      found.kind = kind;
      found.device = on_gpu ? event.deviceIndex() : 0;
      found.track = on_gpu ? static_cast<uint64_t>(event.deviceResourceId()) : event.startThreadId();
      found.start = event.startNs();
      found.end = event.endNs();
      found.id = kind == TW_OPERATOR ? event.correlationId() : 0;
      found.launched_by = kind == TW_OPERATOR ? 0 : event.linkedCorrelationId();
      each(&found, of);
    }
  });
}

void* tw_range_begin(const char* name, size_t length) noexcept {
  try {
    auto range = std::make_unique<at::RecordFunction>(at::RecordScope::USER_SCOPE);
    if (!range->isActive()) return nullptr;
    range->before(std::string_view(name, length));
    return range.release();
  } catch (...) {
    return nullptr;
  }
}

void tw_range_end(void* range) noexcept { delete static_cast<at::RecordFunction*>(range); }
