// A GPU's queue and events, and the process' modes, through libtorch's device-neutral interface.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// Waits for all work of a GPU. A fault of earlier work shows here.
int tw_gpu_synchronize(int device, char* error, size_t error_length) noexcept;

// An event of the device type of GPUs. Created before it is first recorded; never null.
void* tw_event_create() noexcept;
// Records it in the calling thread's current stream of a device.
int tw_event_record(void* event, int device, char* error, size_t error_length) noexcept;
// Waits until the device has come to it.
int tw_event_wait(void* event, char* error, size_t error_length) noexcept;
void tw_event_destroy(void* event) noexcept;

// Keeps convolutions and products of f32 from rounding their operands to TF32, in the whole process.
int tw_gpu_forbid_tf32(char* error, size_t error_length) noexcept;

// Keeps convolutions of the processor from NNPACK, which warns at each where it does not run.
int tw_cpu_leave_nnpack_out(char* error, size_t error_length) noexcept;

// Writes 1 if neither of them may round f32 to TF32, else 0.
int tw_gpu_is_f32_exact(int* exact, char* error, size_t error_length) noexcept;

// Writes 1 if libtorch has a kernel for the attention of these tensors [N, heads, tokens, width] that holds no matrix of scores,
// else 0. The pointers are at::Tensor's.
int tw_has_fused_attention(const void* query, const void* key, const void* value, int* fused, char* error,
                           size_t error_length) noexcept;

}  // extern "C"
