// The operators of a fake GPU: those of the CPU, on tensors that carry another device's name.
#include "counter.h"
#include "device.h"
#include "profiler.h"
#include "script.h"

#include <atomic>
#include <ATen/Context.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/stack.h>
#include <ATen/ops/_scaled_dot_product_attention_math.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

namespace {

using c10::DispatchKey;
using c10::DispatchKeySet;

// Keeps the storage alive whose memory another one names by another device.
void drop_storage(void* context) { delete static_cast<c10::Storage*>(context); }

c10::Storage renamed(const c10::Storage& storage, c10::Device device, c10::Allocator* allocator) {
  if (storage.data_ptr().get_deleter() == &drop_storage) {
    const auto& original = *static_cast<c10::Storage*>(storage.data_ptr().get_context());
    if (original.device() == device) return original;
  }
  c10::DataPtr data(storage.mutable_data(), new c10::Storage(storage), &drop_storage, device);
  return c10::Storage(c10::Storage::use_byte_size_t(), storage.nbytes(), std::move(data), allocator, /*resizable=*/true);
}

at::Tensor renamed(const at::Tensor& tensor, c10::Device device, DispatchKey key, c10::Allocator* allocator) {
  auto impl = c10::make_intrusive<c10::TensorImpl>(renamed(tensor.storage(), device, allocator), DispatchKeySet(key),
                                                   tensor.dtype());
  impl->set_sizes_and_strides(tensor.sizes(), tensor.strides(), tensor.storage_offset());
  return at::Tensor(std::move(impl));
}

at::Tensor on_host(const at::Tensor& tensor) {
  return renamed(tensor, c10::Device(c10::DeviceType::CPU), DispatchKey::CPU, c10::GetCPUAllocator());
}

at::Tensor on_device(const at::Tensor& tensor, c10::Device device) {
  return renamed(tensor, device, DispatchKey::CUDA, &fake::allocator());
}

// Operators that take tensors of more than one device.
bool is_copy(const std::string& name) {
  return name == "aten::copy_" || name == "aten::_copy_from" || name == "aten::_copy_from_and_resize";
}

// Operators that convert types on the way on a GPU. The CPU's do it beforehand, in memory that a GPU would not need.
bool converts_on_the_way(const std::string& name) {
  static const std::unordered_set<std::string> names = {
      "aten::add", "aten::add_", "aten::sub",  "aten::sub_",    "aten::mul",  "aten::mul_",
      "aten::div", "aten::div_", "aten::mean", "aten::addcmul", "aten::sum",  "aten::linalg_vector_norm",
      "aten::std", "aten::addcmul_", "aten::_fused_rms_norm",
  };
  return names.count(name) != 0;
}

// Matrix products, by the names that libtorch's layers end in.
bool multiplies(const std::string& name) {
  return name == "aten::mm" || name == "aten::addmm" || name == "aten::bmm" || name == "aten::linear";
}

// One call of the CPU's operator.
class Call {
 public:
  explicit Call(const c10::OperatorHandle& op) : op_(op), name_(op.schema().name()) {}

  void run(torch::jit::Stack* stack) {
    const auto& arguments = op_.schema().arguments();
    const size_t first = stack->size() - arguments.size();
    fake::Launch launch(op_.schema());
    launch.arguments(*stack);
    for (size_t number = 0; number != arguments.size(); ++number) replace((*stack)[first + number]);
    TORCH_CHECK(device_.has_value(), name_, " has no tensor on a GPU");
    const int device = device_->index();
    fake::begin_operation(device, op_.schema().name().c_str());
    const bool convolves = name_.find("conv") != std::string::npos;
    TORCH_CHECK(!convolves || !is_of_miopen("fails", (*stack)[first].toTensor(), /*enabled=*/true), "miopenStatusUnknownError");
    if (name_ == "aten::_convolution" && stack->back().toBool()) round_operands(stack, first);
    const bool is_slow = convolves && is_slow_by_miopen((*stack)[first].toTensor());
    fake::Activity activity(device);
    if (convolves) fake::enqueue(device, time_of((*stack)[first].toTensor()));
    const fake::Clock::time_point begun = fake::Clock::now();
    // What the host is to see has to be there.
    const bool waits = is_copy(name_) && has_host_tensor_ && !(name_ == "aten::copy_" && stack->back().toBool());
    const bool synchronizes = name_ == "aten::_local_scalar_dense" || waits;
    if (synchronizes) {
      fake::synchronize(device);
      activity.waited();
    }
    is_own_ = convolves || converts_on_the_way(name_);
    // A workspace as large as the input, beside the results. The CPU's depends on the size and on the processor.
    const c10::DataPtr workspace = convolves ? workspace_of((*stack)[first].toTensor()) : c10::DataPtr();
    {
      fake::Diverted diverted(is_own_ ? -1 : device);
      op_.redispatchBoxed(DispatchKeySet(DispatchKey::CPU), stack);
    }
    // Beside the processor's own time, however busy it is.
    if (is_slow) fake::enqueue(device, 10 * std::chrono::duration<double, std::milli>(fake::Clock::now() - begun).count());
    for (auto& [alias, original] : originals_) carry_over(alias, original);
    if (script().loses_bits && is_copy(name_)) lose_bits(torch::jit::peek(*stack, 0, 1).toTensor());
    const size_t results = op_.schema().returns().size();
    for (size_t number = stack->size() - results; number != stack->size(); ++number) give((*stack)[number], convolves);
    launch.results(*stack);
    if (activity.is_recorded()) report(activity, *stack);
    if (synchronizes) fake::write_counts();
    if (convolves) fake::leak(device, script().leak);
  }

 private:
  void replace(c10::IValue& value) {
    if (value.isTensor()) {
      value = taken(value.toTensor());
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = value.toTensorList().copy();
      for (size_t index = 0; index != list.size(); ++index) list[index] = taken(list.get(index));
      value = list;
    } else if (value.isOptionalTensorList()) {
      auto list = value.toOptionalTensorList().copy();
      for (size_t index = 0; index != list.size(); ++index) {
        if (const std::optional<at::Tensor> tensor = list.get(index)) list[index] = taken(*tensor);
      }
      value = list;
    } else if (value.isDevice() && value.toDevice().is_cuda()) {
      value = c10::Device(c10::DeviceType::CPU);
    }
  }

  at::Tensor taken(const at::Tensor& tensor) {
    if (!tensor.defined()) return tensor;
    if (!tensor.is_cuda()) {
      has_host_tensor_ = true;
      const bool is_borrowed = tensor.numel() > 0 && tensor.storage().data_ptr().get_context() == nullptr;
      TORCH_CHECK(!(script().refuses_borrowed && is_borrowed), "a copy from memory that libtorch did not allocate");
      // Scalars go with any device, and so do the indices of an indexed read.
      if (tensor.dim() > 0 && name_.find("index") == std::string::npos) same(tensor.device());
      return tensor;
    }
    if (!device_) device_ = tensor.device();
    same(tensor.device());
    at::Tensor alias = on_host(tensor);
    originals_.emplace_back(alias, tensor);
    return alias;
  }

  void same(c10::Device device) {
    if (!found_) found_ = device;
    TORCH_CHECK(*found_ == device || is_copy(name_), "Expected all tensors to be on the same device, but found at least two devices, ",
                *found_, " and ", device, "!");
  }

  // What an operator did to an argument, its extents and its memory.
  static void carry_over(const at::Tensor& alias, const at::Tensor& original) {
    auto* to = original.unsafeGetTensorImpl();
    if (alias.storage().data() != original.storage().data() || alias.storage().nbytes() != original.storage().nbytes()) {
      to->set_storage_keep_dtype(renamed(alias.storage(), original.device(), &fake::allocator()));
    }
    if (alias.sizes() != original.sizes() || alias.strides() != original.strides() ||
        alias.storage_offset() != original.storage_offset()) {
      to->set_sizes_and_strides(alias.sizes(), alias.strides(), alias.storage_offset());
    }
  }

  void give(c10::IValue& value, bool convolves) {
    if (value.isTensor()) {
      value = given(value.toTensor(), convolves);
    } else if (value.isTensorList()) {
      c10::List<at::Tensor> list = value.toTensorList().copy();
      for (size_t index = 0; index != list.size(); ++index) list[index] = given(list.get(index), false);
      value = list;
    }
  }

  at::Tensor given(const at::Tensor& tensor, bool convolves) {
    if (!tensor.defined() || tensor.is_cuda()) return tensor;
    if (convolves || multiplies(name_)) spoil(tensor, convolves);
    for (const auto& [alias, original] : originals_) {
      if (alias.is_same(tensor)) return original;
    }
    // The host's tensor that something was copied to.
    if (is_copy(name_)) return tensor;
    return on_device(is_own_ ? copied(tensor) : tensor, *device_);
  }

  // For a profiler. A scalar that the host reads is a copy of its own.
  void report(const fake::Activity& activity, const torch::jit::Stack& stack) const {
    fake::Work work = fake::Work::kKernel;
    if (name_ == "aten::_local_scalar_dense") {
      work = fake::Work::kCopyToHost;
    } else if (!fake::launches(op_.schema())) {
      return;
    } else if (is_copy(name_) && has_host_tensor_) {
      work = stack.back().toTensor().is_cuda() ? fake::Work::kCopyToDevice : fake::Work::kCopyToHost;
    }
    activity.report(work, op_.schema().name().c_str());
  }

  // TF32's ten bits of mantissa, of input and weight.
  static void round_operands(torch::jit::Stack* stack, size_t first) {
    TORCH_CHECK(script().arch >= "sm_80", "TF32 on a device without it");
    fake::Diverted host(-1);
    for (size_t place = first; place != first + 2; ++place) {
      at::Tensor copy = (*stack)[place].toTensor().clone();
      if (copy.scalar_type() != at::kFloat) continue;
      auto* bits = static_cast<uint32_t*>(copy.storage().mutable_data());
      for (size_t index = 0; index != copy.storage().nbytes() / 4; ++index) bits[index] = (bits[index] + 0x1000) & ~0x1FFFu;
      (*stack)[place] = copy;
    }
  }

  // True if the script says this of MIOpen for such a convolution, and MIOpen is as said.
  static bool is_of_miopen(const char* words, const at::Tensor& input, bool enabled) {
    const Script& faults = script();
    return faults.miopen == words && input.numel() >= faults.miopen_from && at::globalContext().userEnabledCuDNN() == enabled;
  }

  static bool is_slow_by_miopen(const at::Tensor& input) {
    return is_of_miopen("slow", input, /*enabled=*/true) || is_of_miopen("fast", input, /*enabled=*/false);
  }

  // Milliseconds that a convolution of an input takes.
  static double time_of(const at::Tensor& input) {
    static double longer = 0;
    longer += script().slower;
    const bool is_large = script().cliff != 0 && input.nbytes() >= script().cliff;
    return script().delay + longer + (is_large ? 100.0 * static_cast<double>(input.nbytes()) / (1 << 20) : 0);
  }

  // Changes a value that has come to the host.
  static void lose_bits(const at::Tensor& tensor) {
    if (tensor.is_cpu() && tensor.numel() > 100 && tensor.is_contiguous()) {
      static_cast<unsigned char*>(tensor.mutable_data_ptr())[tensor.nbytes() / 2] += 1;
    }
  }

  c10::DataPtr workspace_of(const at::Tensor& input) const {
    fake::Diverted diverted(device_->index());
    return c10::GetCPUAllocator()->allocate(input.nbytes());
  }

  // The same values in the device's memory.
  at::Tensor copied(const at::Tensor& tensor) const {
    fake::Diverted diverted(device_->index());
    return at::empty_like(tensor).copy_(tensor);
  }

  static void spoil(const at::Tensor& tensor, bool convolves) {
    const Script& faults = script();
    const char* dtype = tensor.scalar_type() == at::kFloat ? "f32" : tensor.scalar_type() == at::kHalf ? "f16" : "bf16";
    static std::atomic<int64_t> results{0};
    fake::Diverted host(-1);
    if (faults.nan == dtype && ++results > faults.nan_after) tensor.fill_(std::numeric_limits<double>::quiet_NaN());
    const double error = convolves ? faults.error : faults.product_error;
    if (error != 0) tensor.mul_(1 + error);
  }

  const c10::OperatorHandle& op_;
  std::string name_;
  std::optional<c10::Device> device_;
  // The device of the tensors that are no scalars.
  std::optional<c10::Device> found_;
  bool has_host_tensor_ = false;
  // The device holds nothing for it but its results and a workspace.
  bool is_own_ = false;
  // The CPU's names of the arguments, and the arguments.
  std::vector<std::pair<at::Tensor, at::Tensor>> originals_;
};

void call_on_host(const c10::OperatorHandle& op, torch::jit::Stack* stack) { Call(op).run(stack); }

c10::OptionalDeviceGuard guard(std::optional<c10::Device> device) {
  return c10::OptionalDeviceGuard(device.value_or(c10::Device(c10::DeviceType::CUDA)));
}

at::Tensor empty(c10::IntArrayRef size, std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                 std::optional<c10::Device> device, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  const auto on = guard(device);
  return at::detail::empty_generic(size, &fake::allocator(), DispatchKeySet(DispatchKey::CUDA),
                                   dtype.value_or(at::kFloat), format);
}

at::Tensor empty_strided(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                         std::optional<at::Layout>, std::optional<c10::Device> device, std::optional<bool>) {
  const auto on = guard(device);
  return at::detail::empty_strided_generic(size, stride, &fake::allocator(), DispatchKeySet(DispatchKey::CUDA),
                                           dtype.value_or(at::kFloat));
}

// at::SDPBackend: 0 the score matrix, 1 flash attention.
int64_t fused_choice(const at::Tensor&, const at::Tensor&, const at::Tensor&, const std::optional<at::Tensor>&, double, bool,
                     std::optional<double>, bool) {
  return script().has_flash ? 1 : 0;
}

void attention(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  if (script().has_flash) return call_on_host(op, stack);
  const auto take = [&](size_t place) { return torch::jit::peek(*stack, place, 8); };
  const auto mask = take(3).toOptional<at::Tensor>();
  auto [output, scores] =
      at::_scaled_dot_product_attention_math(take(0).toTensor(), take(1).toTensor(), take(2).toTensor(), mask,
                                             take(4).toDouble(), take(5).toBool(), {}, take(6).toOptional<double>(),
                                             take(7).toBool());
  torch::jit::drop(*stack, 8);
  torch::jit::push(*stack, std::move(output));
}

}  // namespace

TORCH_LIBRARY_IMPL(_, CUDA, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&call_on_host>()); }

TORCH_LIBRARY_IMPL(aten, CUDA, library) {
  library.impl("empty.memory_format", TORCH_FN(empty));
  library.impl("empty_strided", TORCH_FN(empty_strided));
  library.impl("_fused_sdp_choice", TORCH_FN(fused_choice));
  library.impl("scaled_dot_product_attention", torch::CppFunction::makeFromBoxedFunction<&attention>());
  // Of parts that the real library has for CUDA alone: here they are the CPU's as a whole.
  for (const char* name : {"conv2d", "conv3d", "_convolution", "copy_", "native_group_norm", "native_layer_norm", "_fused_rms_norm"}) {
    library.impl(name, torch::CppFunction::makeFromBoxedFunction<&call_on_host>());
  }
}
