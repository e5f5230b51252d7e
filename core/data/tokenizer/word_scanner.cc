#include <palimpsest/core/data/tokenizer/word_scanner.h>

#include <palimpsest/core/data/tokenizer/char_class.h>
#include <palimpsest/core/data/tokenizer/utf8.h>

#include <array>
namespace palimpsest {

namespace {

struct ClassedChar {
  uint32_t code = 0;
  uint32_t size = 0; // 0: the text's end
  CharClass kind = CharClass::kSpace;
};

ClassedChar at_or_end(std::string_view text, size_t at) {
  if (at == text.size()) {
    return {};
  }
  const Utf8Char next = utf8_at(text, at);
  return {next.code, next.size, char_class(next.code)};
}

/// The end of a run of characters of a class.
size_t run_end(std::string_view text, size_t at, CharClass kind) {
  while (at < text.size()) {
    const Utf8Char next = utf8_at(text, at);
    if (char_class(next.code) != kind) {
      break;
    }
    at += next.size;
  }
  return at;
}

/// The end of a run of numbers, of at most `limit` of them.
size_t numbers_end(std::string_view text, size_t at, int limit) {
  for (; at < text.size() && limit > 0; --limit) {
    const Utf8Char next = utf8_at(text, at);
    if (char_class(next.code) != CharClass::kNumber) {
      break;
    }
    at += next.size;
  }
  return at;
}

bool is_line_end(char c) {
  return c == '\r' || c == '\n';
}

/// Bytes of 's 't 're 've 'm 'll 'd after the apostrophe at `at`, with it; 0: none of them.
size_t contraction(std::string_view text, size_t at, bool any_case) {
  const std::string_view rest = text.substr(at + 1, 2);
  const auto letter = [&](size_t k) -> char {
    return k >= rest.size() ? '\0' : any_case && rest[k] < 'a' ? char(rest[k] | 0x20) : rest[k];
  };
  switch (letter(0)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(1) == 'e' ? 3 : 0;
    case 'l':
      return letter(1) == 'l' ? 3 : 0;
    default: // U+017F, the long s, folds to s
      return any_case && rest == "\xc5\xbf" ? 3 : 0;
  }
}

/// \s+(?!\S)|\s+ for a run that begins at `at`: all of it at the text's end, else all but its last
/// character, which belongs to the word behind it, unless it is the only one.
size_t space_end(std::string_view text, size_t at, size_t run) {
  if (run == text.size()) {
    return run;
  }
  const size_t last = utf8_before(text, run);
  return last > at ? last : run;
}

size_t gpt2_end(std::string_view text, size_t at) {
  if (text[at] == '\'') {
    if (const size_t size = contraction(text, at, /*any_case=*/false); size > 0) {
      return at + size;
    }
  }
  size_t begin = at;
  ClassedChar first = at_or_end(text, at);
  if (text[at] == ' ') {
    begin = at + 1;
    first = at_or_end(text, begin);
  }
  if (first.kind != CharClass::kSpace) {
    return run_end(text, begin + first.size, first.kind);
  }
  return space_end(text, at, run_end(text, begin, CharClass::kSpace));
}

size_t llama3_space_end(std::string_view text, size_t at) {
  const size_t run = run_end(text, at, CharClass::kSpace);
  for (size_t end = run; end > at; --end) {
    if (is_line_end(text[end - 1])) {
      return end; // \s*[\r\n]+
    }
  }
  return space_end(text, at, run);
}

size_t llama3_end(std::string_view text, size_t at, int digits) {
  if (text[at] == '\'') {
    if (const size_t size = contraction(text, at, /*any_case=*/true); size > 0) {
      return at + size;
    }
  }
  const ClassedChar first = at_or_end(text, at);
  if (first.kind == CharClass::kLetter) {
    return run_end(text, at + first.size, CharClass::kLetter);
  }
  if (first.kind == CharClass::kNumber) {
    return numbers_end(text, at, digits);
  }
  const size_t next_at = at + first.size;
  const ClassedChar next = at_or_end(text, next_at);
  if (next.kind == CharClass::kLetter && !is_line_end(text[at])) {
    return run_end(text, next_at, CharClass::kLetter);
  }
  const bool spaced = text[at] == ' ' && next.kind == CharClass::kOther;
  if (first.kind == CharClass::kOther || spaced) {
    size_t end = run_end(text, next_at, CharClass::kOther);
    while (end < text.size() && is_line_end(text[end])) {
      ++end;
    }
    return end;
  }
  return llama3_space_end(text, at);
}

} // namespace

std::optional<WordRule> known_word_rule(std::string_view regex) {
  if (regex == kGpt2Regex) {
    return WordRule::kGpt2;
  } else if (regex == kLlama3Regex) {
    return WordRule::kLlama3;
  } else if (regex == kQwen2Regex) {
    return WordRule::kQwen2;
  }
  return std::nullopt;
}

std::optional<size_t> last_word_cut(
    std::string_view text,
    bool line_ends,
    const std::function<bool(std::string_view letter)>& accepts) {
  for (size_t at = text.size(); at-- > 1;) {
    if (text[at] != ' ' && !(line_ends && is_line_end(text[at]))) {
      continue;
    }
    const size_t before = utf8_before(text, at);
    const std::string_view letter = text.substr(before, at - before);
    // The text may begin within a character, too.
    if (!invalid_utf8(letter) && char_class(utf8_at(letter, 0).code) == CharClass::kLetter &&
        (!accepts || accepts(letter))) {
      return at;
    }
  }
  return std::nullopt;
}

size_t word_end(WordRule rule, std::string_view text, size_t at) {
  switch (rule) {
    case WordRule::kGpt2:
      return gpt2_end(text, at);
    case WordRule::kLlama3:
      return llama3_end(text, at, /*digits=*/3);
    case WordRule::kQwen2:
      break;
  }
  return llama3_end(text, at, /*digits=*/1);
}

} // namespace palimpsest
