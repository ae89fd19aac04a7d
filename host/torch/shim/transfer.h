// Copies between a GPU's memory and the host's on streams of their own, beside its work.
#pragma once

#include <cstddef>

extern "C" {

// An uninitialised tensor on the CPU with the extents and strides of another one. It is pinned if there is a way to do so.
int tw_host_like(const void* tensor, void** result, char* error, size_t error_length) noexcept;

// Queues a copy from one tensor to another, of which one is on a GPU, behind the work that is queued there so far. The event is
// recorded behind it.
int tw_start_copy(void* to, const void* from, void* event, char* error, size_t error_length) noexcept;

// Lets later work of a device wait for an event.
int tw_event_block(void* event, int device, char* error, size_t error_length) noexcept;
}
