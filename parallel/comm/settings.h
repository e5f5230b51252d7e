#pragma once

// What every engine's communicators need to know.

#include <chrono>

namespace palimpsest {

struct CommSettings {
  /// How long one operation waits for its peers. Declared long work at a peer does not count.
  std::chrono::milliseconds timeout{60'000};
};

} // namespace palimpsest
