#pragma once

// Words of what is printed.
//
//   counted(1, "step")      // "1 step"
//   counted(12, "step")     // "12 steps"

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace palimpsest {

/// A number and a noun with a plural in -s.
inline std::string counted(int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

} // namespace palimpsest
