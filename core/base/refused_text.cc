#include <palimpsest/core/base/refused_text.h>

#include <fmt/format.h>

#include <filesystem>

namespace palimpsest {

std::string refused_text(const std::system_error& error) {
  const std::string why = error.code().message();
  if (const auto* file = dynamic_cast<const std::filesystem::filesystem_error*>(&error)) {
    return fmt::format("cannot use {}: {}", file->path1().string(), why);
  }
  return fmt::format(
      "cannot start a thread: {}; free memory, or raise the limits on address space and processes "
      "(ulimit -v, ulimit -u)",
      why);
}

} // namespace palimpsest
