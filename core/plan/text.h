#pragma once

// Small parts of reading plans back from text; private to core/plan.
//
//   text::split("a,b", ',')          // {"a", "b"}
//   text::parse_index("12")          // 12; empty for what is no number from 0 to 2^31 - 1

#include <palimpsest/core/base/error.h>

#include <array>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest::text {

/// Parts between separators; one empty part for an empty text.
inline std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (size_t begin = 0;;) {
    const size_t end = text.find(separator, begin);
    parts.push_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) {
      return parts;
    }
    begin = end + 1;
  }
}

inline std::optional<int> parse_index(std::string_view text) {
  int number = 0;
  const char* stop = text.data() + text.size();
  const auto [end, status] = std::from_chars(text.data(), stop, number);
  if (status != std::errc() || end != stop || number < 0 || text.starts_with('-')) {
    return std::nullopt;
  }
  return number;
}

template <size_t size>
std::optional<int> find_name(
    const std::array<std::string_view, size>& names,
    std::string_view text) {
  for (size_t index = 0; index < size; ++index) {
    if (names[index] == text) {
      return static_cast<int>(index);
    }
  }
  return std::nullopt;
}

/// The place of `text` among `names`. Throws UserError that says what was wanted and lists the
/// names.
template <size_t size>
int parse_name(
    const std::array<std::string_view, size>& names,
    std::string_view text,
    std::string_view wanted) {
  if (const auto found = find_name(names, text)) {
    return *found;
  }
  std::string list;
  for (const std::string_view name : names) {
    list += list.empty() ? "" : ", ";
    list += name;
  }
  throw UserError("'{}' is not {}; choose one of {}", text, wanted, list);
}

} // namespace palimpsest::text
