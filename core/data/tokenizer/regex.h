#pragma once

// Regular expressions of tokenizers, written for the reference library's engine (Oniguruma with
// Ruby's syntax) and run by PCRE2's just-in-time compiler.
//
//   const Regex digits(R"(\p{N}{1,3})", "tokenizer.json: pre_tokenizer");
//   Regex::Matcher matcher;                      // one per thread
//   if (auto match = digits.find(text, 0, matcher)) { ... match->begin, match->end ... }

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest {

class Regex {
 public:
  struct Match {
    size_t begin = 0;
    size_t end = 0;
  };

  /// Working memory of matches; takes none before the first.
  class Matcher {
   public:
    Matcher();
    Matcher(Matcher&&) noexcept;
    ~Matcher();

   private:
    friend class Regex;
    struct State;
    std::unique_ptr<State> state_;
  };

  /// UserError beginning with `where` for an expression that PCRE2 refuses, or that it would read in
  /// another way than Oniguruma: classes inside classes, POSIX ones, `&&` in classes, \b, \h and
  /// Ruby's (?m).
  Regex(std::string_view expression, const std::string& where);
  Regex(Regex&&) noexcept;
  ~Regex();

  /// The first match at or after byte `at` of valid UTF-8 text; it may be empty. UserError where
  /// the expression takes too long on the text.
  std::optional<Match> find(std::string_view text, size_t at, Matcher& matcher) const;

 private:
  struct Code;
  std::unique_ptr<Code> code_;
  std::string where_;
};

} // namespace palimpsest
