#include "cancel.h"

#include <utility>

namespace {
thread_local tw_wish current{nullptr, nullptr};
}  // namespace

tw_wish tw_wish_exchange(tw_wish wish) noexcept { return std::exchange(current, wish); }

Wish::Wish() noexcept : wish_(current) {}
