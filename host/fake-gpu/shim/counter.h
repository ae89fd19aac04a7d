// The launches of a fake GPU's operators, and the bytes that they read and write.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/function_schema.h>
#include <ATen/core/stack.h>

#include <cstdint>

namespace fake {

// True for an operator that launches work: views and allocations don't.
bool launches(const c10::FunctionSchema& schema);

// One call of an operator: what it moves is known in two parts, as its arguments leave the stack.
class Launch {
 public:
  explicit Launch(const c10::FunctionSchema& schema);
  // Before the call: its arguments.
  void arguments(const torch::jit::Stack& stack);
  // After it: its results. The call is counted.
  void results(const torch::jit::Stack& stack);

 private:
  void moves(const c10::IValue& value, int64_t times);
  void moves(const at::Tensor& tensor, int64_t times);

  const c10::FunctionSchema& schema_;
  bool is_counted_;
  bool has_host_tensor_ = false;
  int64_t bytes_ = 0;
  // The bytes of a bias that is copied to a result whose rows lie apart.
  int64_t bias_bytes_ = 0;
};

// Writes the counts to their file. The host does that when it waits: a process may end without a word to its libraries.
void write_counts();

}  // namespace fake
