#pragma once

// The pattern of a Replace or Split of tokenizer.json: a literal text, or a regular expression.
//
//   const TextPattern pattern(component);           // its key "pattern"
//   if (auto match = pattern.find(text, 0, matcher)) { ... }

#include <palimpsest/core/data/tokenizer/component.h>
#include <palimpsest/core/data/tokenizer/regex.h>

#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace palimpsest {

class TextPattern {
 public:
  /// Of the component's key "pattern": {"String": text}, {"Regex": expression}, or the text itself.
  explicit TextPattern(const Component& component);

  /// The literal text, or the expression.
  const std::string& source() const {
    return source_;
  }
  bool is_literal() const {
    return !regex_.has_value();
  }
  /// The first match at or after byte `at` that is not empty.
  std::optional<Regex::Match> find(std::string_view text, size_t at, Regex::Matcher& matcher) const;

 private:
  std::string source_;
  std::optional<Regex> regex_;
};

} // namespace palimpsest
