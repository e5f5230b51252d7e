#pragma once

// Bytes that can be freed when they are wanted: what an allocation calls before it is refused.
//
//   const ScopedRelief relief([&] { return wait_for_transfers(); });    // true: something was freed
//   output = forward(input);

#include <functional>

namespace palimpsest {

/// While it lives, an allocation of this thread that would exceed its context's limit first calls
/// `free`, and is tried again while that returns true. `free` may allocate, without relief. What it
/// throws, the allocation throws. Scopes nest: the innermost counts.
class ScopedRelief {
 public:
  explicit ScopedRelief(std::function<bool()> free);
  ScopedRelief(const ScopedRelief&) = delete;
  ScopedRelief& operator=(const ScopedRelief&) = delete;
  ~ScopedRelief();

 private:
  friend bool relieve();
  std::function<bool()> free_;
  ScopedRelief* previous_;
};

/// Calls what this thread's ScopedRelief says; false where there is none.
bool relieve();

} // namespace palimpsest
