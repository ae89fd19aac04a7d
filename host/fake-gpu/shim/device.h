// The devices of a fake GPU: memory, queues and faults.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <chrono>
#include <cstddef>

namespace fake {

using Clock = std::chrono::steady_clock;

// The device of the calling thread, as cudaSetDevice has it.
int current_device();
void set_current_device(int device);

// The stream of the calling thread on a device.
c10::StreamId current_stream(int device);
void set_current_stream(int device, c10::StreamId stream);

// Throws if the device has no kernels for its architecture, or is lost; counts an operation, whose name is kept.
void begin_operation(int device, const char* name);
// The same for a call that waits for the device: a fault shows there.
void check(int device);

// Work of the current stream, which is over after so many milliseconds more.
void enqueue(int device, double milliseconds);
// The time that a stream's work is over.
Clock::time_point end_of(int device, c10::StreamId stream);
// Lets a stream wait for a time.
void wait_in_stream(int device, c10::StreamId stream, Clock::time_point until);
// Waits for all streams of a device.
void synchronize(int device);

// The allocator of the devices' memory.
c10::Allocator& allocator();

// Loses as many bytes of a device.
void leak(int device, size_t bytes);

// While it lives, the CPU's operators of this thread allocate on a device.
class Diverted {
 public:
  explicit Diverted(int device);
  ~Diverted();
  Diverted(const Diverted&) = delete;
  Diverted& operator=(const Diverted&) = delete;

 private:
  int before_;
};

}  // namespace fake
