#include "counter.h"
#include "script.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <map>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

namespace {

// Launches and bytes.
using Count = std::pair<int64_t, int64_t>;

// Counts by kind and name of operators.
struct Counts {
  std::mutex mutex;
  std::map<std::pair<std::string, std::string>, Count> of;

  void write() {
    std::lock_guard lock(mutex);
    std::FILE* file = std::fopen(script().counts.c_str(), "w");
    if (file == nullptr) return;
    Count glue{0, 0};
    for (const auto& [operation, count] : of) {
      const auto& [kind, name] = operation;
      if (kind == "glue") glue = {glue.first + count.first, glue.second + count.second};
      print(file, kind, name, count);
    }
    print(file, "glue", "total", glue);
    std::fclose(file);
  }

  static void print(std::FILE* file, const std::string& kind, const std::string& name, const Count& count) {
    std::fprintf(file, "%s %s %" PRId64 " %" PRId64 "\n", kind.c_str(), name.c_str(), count.first, count.second);
  }

  void add(const std::string& kind, const std::string& name, int64_t bytes) {
    std::lock_guard lock(mutex);
    auto& [launches, moved] = of[{kind, name}];
    launches += 1;
    moved += bytes;
  }
};

Counts& counts() {
  static Counts counts;
  return counts;
}

bool is_one_of(const std::unordered_set<std::string>& names, const std::string& name) { return names.count(name) != 0; }

// The kind of an operator: only glue is in the total.
const char* kind_of(const std::string& name, bool has_host_tensor) {
  static const std::unordered_set<std::string> products = {"aten::mm",      "aten::addmm",  "aten::bmm",
                                                           "aten::baddbmm", "aten::linear", "aten::_scaled_mm"};
  if (is_one_of(products, name)) return "product";
  if (name.find("conv") != std::string::npos) return "convolution";
  if (name.find("attention") != std::string::npos) return "attention";
  return has_host_tensor && name == "aten::copy_" ? "transfer" : "glue";
}

// Operators that write what they are given without a look at it.
bool only_writes(const std::string& name) {
  return is_one_of({"aten::copy_", "aten::fill_", "aten::zero_", "aten::normal_", "aten::uniform_"}, name);
}

bool launches_nothing(const std::string& name) {
  return is_one_of({"aten::resize_", "aten::set_", "aten::record_stream", "aten::_local_scalar_dense"}, name);
}

}  // namespace

namespace fake {

void write_counts() {
  if (!script().counts.empty()) counts().write();
}

bool launches(const c10::FunctionSchema& schema) {
  if (launches_nothing(schema.name())) return false;
  // A view's result is its argument's memory, which it does not write.
  const auto is_view = [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  };
  return std::none_of(schema.returns().begin(), schema.returns().end(), is_view);
}

Launch::Launch(const c10::FunctionSchema& schema) : schema_(schema), is_counted_(!script().counts.empty() && launches(schema)) {}

void Launch::arguments(const torch::jit::Stack& stack) {
  if (!is_counted_) return;
  const auto& arguments = schema_.arguments();
  const size_t first = stack.size() - arguments.size();
  for (size_t number = 0; number != arguments.size(); ++number) {
    const auto* alias = arguments[number].alias_info();
    const bool is_written = alias != nullptr && alias->isWrite();
    const bool is_read_too = is_written && !arguments[number].is_out() && !only_writes(schema_.name());
    moves(stack[first + number], is_read_too ? 2 : 1);
    // cuBLASLt adds a bias to a result without gaps alone; libtorch lays it out in the result otherwise.
    if (schema_.name() == "aten::addmm" && arguments[number].is_out()) {
      const at::Tensor& output = stack[first + number].toTensor();
      if (!output.is_contiguous()) bias_bytes_ = static_cast<int64_t>(output.numel() * output.element_size());
    }
  }
}

void Launch::results(const torch::jit::Stack& stack) {
  if (!is_counted_) return;
  const auto& results = schema_.returns();
  const size_t first = stack.size() - results.size();
  for (size_t number = 0; number != results.size(); ++number) {
    if (results[number].alias_info() == nullptr) moves(stack[first + number], 1);
  }
  counts().add(kind_of(schema_.name(), has_host_tensor_), schema_.name(), bytes_);
  if (bias_bytes_ > 0) counts().add("glue", "bias", bias_bytes_);
}

void Launch::moves(const c10::IValue& value, int64_t times) {
  if (value.isTensor()) {
    moves(value.toTensor(), times);
  } else if (value.isTensorList()) {
    for (const at::Tensor& tensor : value.toTensorVector()) moves(tensor, times);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& tensor : value.toOptionalTensorVector()) {
      if (tensor) moves(*tensor, times);
    }
  }
}

void Launch::moves(const at::Tensor& tensor, int64_t times) {
  if (!tensor.defined()) return;
  if (!tensor.is_cuda()) {
    has_host_tensor_ = has_host_tensor_ || tensor.dim() > 0;
    return;
  }
  // Values that are expanded stand in memory once.
  int64_t values = 1;
  for (int64_t axis = 0; axis != tensor.dim(); ++axis) {
    if (tensor.stride(axis) != 0) values *= tensor.size(axis);
  }
  bytes_ += times * values * static_cast<int64_t>(tensor.element_size());
}

}  // namespace fake
