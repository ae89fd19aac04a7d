#include "profiler.h"

// As Kineto itself is built.
#define KINETO_NAMESPACE libkineto
#include <libkineto.h>
#include <output_base.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace fake {
namespace {

using libkineto::ActivityType;

// A launch that a profiler looked on.
struct Record {
  Work work;
  const char* name;
  int device;
  c10::StreamId stream;
  int32_t thread;
  // The CPU's operator and the user's range around it; 0 is none.
  uint64_t operation;
  uint64_t range;
  // The host's call, and the work.
  Clock::time_point called, returned;
  Clock::time_point begun, over;
};

struct Recorder {
  std::atomic<bool> records{false};
  // The number of recordings so far.
  std::atomic<uint64_t> recordings{0};
  std::mutex mutex;
  std::vector<Record> launches;
};

// Never destroyed: operators may run longer than every static lives.
Recorder& recorder() {
  static Recorder* recorder = new Recorder;
  return *recorder;
}

// The operators and ranges that a thread is in. A recording may end inside of one.
struct Stacks {
  uint64_t recording = 0;
  std::vector<uint64_t> operations, ranges;
};

Stacks& stacks() {
  thread_local Stacks stacks;
  const uint64_t recording = recorder().recordings;
  if (stacks.recording != recording) stacks = {recording, {}, {}};
  return stacks;
}

void pop(std::vector<uint64_t>& ids) {
  if (!ids.empty()) ids.pop_back();
}

uint64_t last(const std::vector<uint64_t>& ids) { return ids.empty() ? 0 : ids.back(); }

// The types and names that CUPTI's activities have: of the call, and of the work.
struct Kind {
  const char* call;
  ActivityType type;
  // Null if the operator gives it.
  const char* name;
};

const Kind& kind_of(Work work) {
  static const std::map<Work, Kind> kinds = {
      {Work::kKernel, {"cudaLaunchKernel", ActivityType::CONCURRENT_KERNEL, nullptr}},
      {Work::kCopyToDevice, {"cudaMemcpyAsync", ActivityType::GPU_MEMCPY, "Memcpy HtoD"}},
      {Work::kCopyToHost, {"cudaMemcpyAsync", ActivityType::GPU_MEMCPY, "Memcpy DtoH"}},
  };
  return kinds.at(work);
}

// From the devices' clock to the system's, whose times Kineto's are. The closest readings count: a thread may be held up
// between two.
std::chrono::nanoseconds difference_to_system() {
  auto closest = Clock::duration::max();
  std::chrono::nanoseconds difference{0};
  for (int reading = 0; reading != 20; ++reading) {
    const auto before = Clock::now();
    const auto system = std::chrono::system_clock::now();
    const auto apart = Clock::now() - before;
    if (apart >= closest) continue;
    closest = apart;
    difference = system.time_since_epoch() - (before + apart / 2).time_since_epoch();
  }
  return difference;
}

class Session final : public libkineto::IActivityProfilerSession {
 public:
  explicit Session(std::set<ActivityType> types) : types_(std::move(types)) {}
  ~Session() override { recorder().records = false; }

  void start() override {
    to_system_ = difference_to_system();
    Recorder& all = recorder();
    std::lock_guard lock(all.mutex);
    all.launches.clear();
    ++all.recordings;
    all.records = true;
    status_ = libkineto::TraceStatus::RECORDING;
  }
  void stop() override {
    recorder().records = false;
    status_ = libkineto::TraceStatus::PROCESSING;
  }
  std::vector<std::string> errors() override { return {}; }

  void processTrace(libkineto::ActivityLogger&) override {}
  void processTrace(libkineto::ActivityLogger& logger, libkineto::getLinkedActivityCallback linked, int64_t start,
                    int64_t end) override {
    std::vector<Record> launches;
    {
      std::lock_guard lock(recorder().mutex);
      launches.swap(recorder().launches);
    }
    buffer_ = std::make_unique<libkineto::CpuTraceBuffer>();
    buffer_->span = libkineto::TraceSpan(start, end, "Fake GPU");
    int32_t id = 0;
    for (const Record& launch : launches) {
      const auto* operation = linked(static_cast<int32_t>(launch.operation));
      add_call(launch, ++id, operation);
      // What a device has not done in time is not seen.
      if (in_system(launch.over) > end) continue;
      add_work(launch, id, operation);
      if (launch.range != 0) extend(launch, linked(static_cast<int32_t>(launch.range)));
    }
    for (const auto& activity : buffer_->activities) {
      if (types_.count(activity->type()) != 0) logger.handleActivity(*activity);
    }
  }

  std::unique_ptr<libkineto::DeviceInfo> getDeviceInfo() override { return nullptr; }
  std::vector<libkineto::ResourceInfo> getResourceInfos() override { return {}; }
  // Kineto keeps the activities as long as the trace.
  std::unique_ptr<libkineto::CpuTraceBuffer> getTraceBuffer() override { return std::move(buffer_); }

  void pushCorrelationId(uint64_t id) override { stacks().operations.push_back(id); }
  void popCorrelationId() override { pop(stacks().operations); }
  void pushUserCorrelationId(uint64_t id) override { stacks().ranges.push_back(id); }
  void popUserCorrelationId() override { pop(stacks().ranges); }

 private:
  int64_t in_system(Clock::time_point time) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time.time_since_epoch() + to_system_).count();
  }

  libkineto::GenericTraceActivity& add(ActivityType type, const std::string& name, Clock::time_point from,
                                       Clock::time_point to) {
    buffer_->emplace_activity(buffer_->span, type, name);
    libkineto::GenericTraceActivity& activity = *buffer_->activities.back();
    activity.startTime = in_system(from);
    activity.endTime = in_system(to);
    return activity;
  }

  void add_call(const Record& launch, int32_t id, const libkineto::ITraceActivity* operation) {
    auto& call = add(ActivityType::CUDA_RUNTIME, kind_of(launch.work).call, launch.called, launch.returned);
    call.device = libkineto::processId();
    call.resource = call.threadId = launch.thread;
    correlate(call, id, /*starts=*/true, operation);
  }

  void add_work(const Record& launch, int32_t id, const libkineto::ITraceActivity* operation) {
    const Kind& kind = kind_of(launch.work);
    const std::string name = kind.name == nullptr ? std::string("fake::") + launch.name : kind.name;
    auto& work = add(kind.type, name, launch.begun, launch.over);
    place(work, launch);
    correlate(work, id, /*starts=*/false, operation);
  }

  // A user's range on a stream: from the first work in it to the last.
  void extend(const Record& launch, const libkineto::ITraceActivity* range) {
    if (range == nullptr) return;
    auto& known = ranges_[{launch.range, launch.device, launch.stream}];
    if (known == nullptr) {
      known = &add(ActivityType::GPU_USER_ANNOTATION, range->name(), launch.begun, launch.over);
      known->id = static_cast<int32_t>(launch.range);
      place(*known, launch);
    }
    known->startTime = std::min(known->startTime, in_system(launch.begun));
    known->endTime = std::max(known->endTime, in_system(launch.over));
  }

  static void place(libkineto::GenericTraceActivity& work, const Record& launch) {
    work.device = launch.device;
    work.resource = static_cast<int32_t>(launch.stream);
  }

  static void correlate(libkineto::GenericTraceActivity& activity, int32_t id, bool starts,
                        const libkineto::ITraceActivity* operation) {
    activity.id = id;
    activity.flow.id = static_cast<uint32_t>(id);
    activity.flow.type = libkineto::kLinkAsyncCpuGpu;
    activity.flow.start = starts;
    activity.linked = operation;
  }

  std::set<ActivityType> types_;
  std::chrono::nanoseconds to_system_{0};
  std::unique_ptr<libkineto::CpuTraceBuffer> buffer_;
  std::map<std::tuple<uint64_t, int, c10::StreamId>, libkineto::GenericTraceActivity*> ranges_;
};

struct Profiler final : libkineto::IActivityProfiler {
  const std::string& name() const override {
    static const std::string name = "fake GPU";
    return name;
  }
  const std::set<ActivityType>& availableActivities() const override {
    static const std::set<ActivityType> types = {ActivityType::CONCURRENT_KERNEL, ActivityType::GPU_MEMCPY,
                                                 ActivityType::GPU_USER_ANNOTATION, ActivityType::CUDA_RUNTIME};
    return types;
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(const std::set<ActivityType>& types,
                                                                 const libkineto::Config&) override {
    if (types.count(ActivityType::CONCURRENT_KERNEL) == 0) return nullptr;
    return std::make_unique<Session>(types);
  }
  std::unique_ptr<libkineto::IActivityProfilerSession> configure(int64_t, int64_t, const std::set<ActivityType>& types,
                                                                 const libkineto::Config& config) override {
    return configure(types, config);
  }
};

[[maybe_unused]] const bool registered = [] {
  libkineto::api().registerProfilerFactory([] { return std::make_unique<Profiler>(); });
  return true;
}();

}  // namespace

bool is_profiled() { return recorder().records.load(std::memory_order_relaxed); }

Activity::Activity(int device) : is_recorded_(is_profiled()), device_(device) {
  if (!is_recorded_) return;
  stream_ = current_stream(device);
  free_ = end_of(device, stream_);
  called_ = Clock::now();
}

void Activity::waited() {
  if (is_recorded_) free_ = Clock::now();
}

void Activity::report(Work work, const char* name) const {
  Recorder& all = recorder();
  if (!is_recorded_ || !is_profiled()) return;
  const auto now = Clock::now();
  const Stacks& around = stacks();
  const Record record{work, name, device_, stream_, libkineto::systemThreadId(), last(around.operations), last(around.ranges),
                      called_, now, std::max(called_, free_), std::max(now, end_of(device_, stream_))};
  std::lock_guard lock(all.mutex);
  all.launches.push_back(record);
}

}  // namespace fake
