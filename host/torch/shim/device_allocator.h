// The part of libtorch's caching allocator for GPUs that limits it.
#pragma once

#include <c10/core/CachingDeviceAllocator.h>

#include <cstddef>

// The beginning of c10::cuda::CUDACachingAllocator::CUDAAllocator, whose own header needs CUDA's or HIP's (pytorch v2.11.0,
// c10/cuda/CUDACachingAllocator.h). Its virtual functions follow the base's in this order; a stream is a pointer.
struct CachingAllocator : c10::DeviceAllocator {
  virtual void* raw_alloc(size_t bytes) = 0;
  virtual void* raw_alloc_with_stream(size_t bytes, void* stream) = 0;
  virtual void raw_delete(void* data) = 0;
  virtual void init(int device_count) = 0;
  virtual double getMemoryFraction(c10::DeviceIndex device) = 0;
  virtual void setMemoryFraction(double fraction, c10::DeviceIndex device) = 0;
};
