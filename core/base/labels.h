#pragma once

// Labels, as data files, batches and losses agree on them.

#include <cstdint>

namespace palimpsest {

/// A label that is no target: it counts neither in a loss nor in its denominator.
inline constexpr int64_t kIgnoredLabel = -100;

} // namespace palimpsest
