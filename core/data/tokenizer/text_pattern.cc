#include <palimpsest/core/data/tokenizer/text_pattern.h>

#include <palimpsest/core/data/tokenizer/utf8.h>

namespace palimpsest {

TextPattern::TextPattern(const Component& component) {
  const Component pattern = component.at("pattern");
  if (pattern.json().is_string()) {
    source_ = component.string("pattern");
  } else if (pattern.json().is_object() && pattern.has("String")) {
    source_ = pattern.string("String");
  } else if (pattern.json().is_object() && pattern.has("Regex")) {
    source_ = pattern.string("Regex");
    regex_.emplace(source_, pattern.where());
  } else {
    component.refuse("pattern", "give a String or a Regex");
  }
  if (source_.empty()) {
    component.refuse("pattern", "an empty pattern matches nothing; give one that is not");
  }
}

std::optional<Regex::Match> TextPattern::find(
    std::string_view text,
    size_t at,
    Regex::Matcher& matcher) const {
  if (!regex_) {
    const size_t found = text.find(source_, at);
    return found == std::string_view::npos
        ? std::nullopt
        : std::optional(Regex::Match{found, found + source_.size()});
  }
  std::optional<Regex::Match> match = regex_->find(text, at, matcher);
  while (match && match->begin == match->end) {
    if (match->end == text.size()) {
      return std::nullopt;
    }
    match = regex_->find(text, match->end + utf8_at(text, match->end).size, matcher);
  }
  return match;
}

} // namespace palimpsest
