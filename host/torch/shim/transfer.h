// Copies between a GPU's memory and the host's on streams of their own, beside its work.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// An uninitialised tensor on the CPU with the extents and strides of another one. It is pinned if there is a way to do so.
int tw_host_like(const void* tensor, void** result, char* error, size_t error_length) noexcept;

// The same as bytes of pinned memory; fails if there is no way to do so.
int tw_pinned(uint64_t bytes, void** result, char* error, size_t error_length) noexcept;

// Gives pinned memory that nothing uses back to the system.
int tw_pinned_empty_cache(char* error, size_t error_length) noexcept;

// Queues a copy from one tensor to another, of which one is on a GPU, behind a recorded event, or if that is null behind the work
// that is queued there so far. The event `end` is recorded behind it.
int tw_start_copy(void* to, const void* from, void* behind, void* end, char* error, size_t error_length) noexcept;

// Records an event behind all copies of a device that are queued behind events so far.
int tw_event_record_behind(void* event, int device, char* error, size_t error_length) noexcept;

// Lets later work of a device wait for an event.
int tw_event_block(void* event, int device, char* error, size_t error_length) noexcept;
}
