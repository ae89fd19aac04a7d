#include "cancel.h"

#include <utility>

namespace {
thread_local tw_cancellation current{nullptr, nullptr};
}  // namespace

tw_cancellation tw_cancellation_exchange(tw_cancellation cancellation) noexcept { return std::exchange(current, cancellation); }

Cancellation::Cancellation() noexcept : cancellation_(current) {}
