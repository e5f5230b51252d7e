#pragma once

// What every engine's communicators need to know.

#include <chrono>

namespace palimpsest {

struct CommSettings {
  /// How long one operation waits for its peers. Declared long work at a peer does not count.
  std::chrono::milliseconds timeout{60'000};
};

/// How long a rank that unwinds after an error waits for what it has in flight, which its peers may
/// never come to; then it ends the world.
inline constexpr std::chrono::milliseconds kUnwindingTimeout{1000};

} // namespace palimpsest
