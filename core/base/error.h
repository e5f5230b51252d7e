#pragma once

// The three kinds of errors, and nothing else is thrown across a folder's border.
//
//   throw UserError("training.epochs: 0 is not allowed; give at least 1");
//   throw EnvironmentError("cannot write runs/a/metrics.jsonl: no space left on device");
//   check(unit < units.size(), "unit {} of {}", unit, units.size());   // ours: a broken invariant
//
// A message is one clear sentence first (what is wrong, where, what is allowed, what to do), detail
// after a newline.

#include <fmt/format.h>

#include <source_location>
#include <stdexcept>
#include <string>
#include <utility>

namespace palimpsest {

/// Base of all of them. `exit_code` is what the program ends with.
class Error : public std::runtime_error {
 public:
  Error(const std::string& message, int exit_code)
      : std::runtime_error(message), exit_code_(exit_code) {}
  int exit_code() const {
    return exit_code_;
  }

 private:
  int exit_code_;
};

/// The user's: config, data, files given, environment variables. Names the key or file:line, what
/// was given, what is allowed, what to do.
class UserError : public Error {
 public:
  template <typename... Args>
  explicit UserError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...), 2) {}
};

/// The environment's: I/O, peers, memory. Says rank, phase, bytes, path, errno where they exist.
class EnvironmentError : public Error {
 public:
  template <typename... Args>
  explicit EnvironmentError(fmt::format_string<Args...> format, Args&&... args)
      : Error(fmt::format(format, std::forward<Args>(args)...), 1) {}
};

/// Ours: an invariant of this program does not hold.
class InternalError : public Error {
 public:
  explicit InternalError(const std::string& message) : Error("internal error: " + message, 70) {}
};

/// A format string that remembers where it was written.
template <typename... Args>
struct LocatedFormat {
  template <typename T>
  consteval LocatedFormat( // NOLINT(google-explicit-constructor): made from the literal at the call
      const T& text,
      std::source_location where = std::source_location::current())
      : format(text), location(where) {}
  fmt::format_string<Args...> format;
  std::source_location location;
};

/// Throws InternalError naming the invariant and its place unless `condition` holds.
template <typename... Args>
void check(bool condition, LocatedFormat<std::type_identity_t<Args>...> message, Args&&... args) {
  if (!condition) {
    throw InternalError(
        fmt::format(message.format, std::forward<Args>(args)...) + " (" +
        message.location.file_name() + ":" + std::to_string(message.location.line()) + ")");
  }
}

} // namespace palimpsest
