#pragma once

// A user's regular expression over names, matched in bounded time and stack.
//
//   const Pattern norms("optimizer.groups", "norm\\.weight$");
//   norms.found_in("model.norm.weight");   // true
//   norms.matches("model.norm.weight");    // false: not the whole name

#include <regex>
#include <string>
#include <string_view>

namespace palimpsest {

/// ECMAScript without back-references. Whatever the expression, a match takes time linear in the
/// name and memory linear in the expression: `(a*)*b` does not hang.
class Pattern {
 public:
  /// UserError naming `key` where the expression is invalid or too large; its size is its number of
  /// characters times all its counted repetitions.
  Pattern(std::string_view key, const std::string& expression);

  /// Somewhere in the name.
  bool found_in(const std::string& name) const;
  /// The whole name.
  bool matches(const std::string& name) const;

 private:
  std::regex regex_;
};

} // namespace palimpsest
