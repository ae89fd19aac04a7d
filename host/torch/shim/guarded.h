// Nothing that is thrown may cross into Rust.
#pragma once
#include <c10/util/Exception.h>

#include <cstddef>
#include <cstring>
#include <exception>

#include "cancel.h"

// The status of work that a cancellation ended.
constexpr int kCancelled = 2;

// Runs `work` and turns whatever it throws into a status and a text.
template <typename Work>
int guarded(char* error, size_t error_length, Work&& work) noexcept {
  const char* text = "a C++ exception that is no std::exception";
  const auto told = [&](const char* reason) {
    std::strncpy(error, reason, error_length - 1);
    error[error_length - 1] = '\0';
    return 1;
  };
  try {
    work();
    return 0;
  } catch (const Cancelled&) {
    return kCancelled;
  } catch (const c10::Error& caught) {
    return told(caught.what_without_backtrace());
  } catch (const std::exception& caught) {
    return told(caught.what());
  } catch (...) {
    return told(text);
  }
}
