#include <palimpsest/core/base/pattern.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <charconv>
#include <cstdint>

namespace palimpsest {
namespace {

// std::regex recurses over its expression and over the states made of it; larger ones could
// overflow the stack, and no name needs them.
constexpr uint64_t kLargest = 2'000;

/// The largest number in the braces that follow `text`'s opening brace; 1 where they count nothing.
uint64_t repetitions(std::string_view text) {
  uint64_t most = 1;
  while (!text.empty() && (text.front() == ',' || (text.front() >= '0' && text.front() <= '9'))) {
    uint64_t count = 0;
    const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), count);
    most = std::max(most, status == std::errc::result_out_of_range ? kLargest + 1 : count);
    text.remove_prefix(std::max<size_t>(1, static_cast<size_t>(end - text.data())));
  }
  return most;
}

uint64_t size_of(std::string_view expression) {
  uint64_t size = expression.size();
  for (size_t at = 0; at < expression.size() && size <= kLargest; ++at) {
    if (expression[at] == '{') {
      size *= std::min(repetitions(expression.substr(at + 1)), kLargest + 1);
    }
  }
  return size;
}

std::regex compile(std::string_view key, const std::string& expression) {
  if (size_of(expression) > kLargest) {
    throw UserError(
        "{}: the regular expression \"{}{}\" is too large; its characters times its counted "
        "repetitions may be {} at most",
        key,
        expression.substr(0, 40),
        expression.size() > 40 ? "..." : "",
        kLargest);
  }
  try {
    // The polynomial matcher follows all alternatives at once instead of trying them in turn.
    return std::regex(
        expression, std::regex_constants::ECMAScript | std::regex_constants::__polynomial);
  } catch (const std::regex_error& error) {
    throw UserError(
        "{}: \"{}\" is not a valid regular expression: {}", key, expression, error.what());
  }
}

} // namespace

Pattern::Pattern(std::string_view key, const std::string& expression)
    : regex_(compile(key, expression)) {}

bool Pattern::found_in(const std::string& name) const {
  return std::regex_search(name, regex_);
}

bool Pattern::matches(const std::string& name) const {
  return std::regex_match(name, regex_);
}

} // namespace palimpsest
