// What a profiler sees of a fake GPU: its work, as CUPTI reports that of a real one.
#pragma once

#include "device.h"

#include <cstdint>

namespace fake {

// What a device does in its queue.
enum class Work { kKernel, kCopyToDevice, kCopyToHost };

// True while a profiler records the devices' work.
bool is_profiled();

// One launch: the host's call and the device's work. Nothing is kept of it unless a profiler records.
class Activity {
 public:
  // When the host calls, before the work is enqueued in the device's current stream.
  explicit Activity(int device);
  // The host has waited for the device.
  void waited();
  // When the call returns. The name has to live as long as the process.
  void report(Work work, const char* name) const;
  bool is_recorded() const { return is_recorded_; }

 private:
  bool is_recorded_;
  int device_;
  c10::StreamId stream_ = 0;
  Clock::time_point called_;
  // The end of the stream's earlier work.
  Clock::time_point free_;
};

}  // namespace fake
