#pragma once

// What a tokenizer does to text before it is split: Unicode normal forms, replacements, a prefix.
//
//   const Normalizer normalizer(Component(json.at("normalizer"), file, "normalizer"));
//   normalizer.apply(text, /*continued=*/false, matcher);  // text is valid UTF-8, and stays so

#include <palimpsest/core/data/tokenizer/component.h>
#include <palimpsest/core/data/tokenizer/regex.h>
#include <palimpsest/core/data/tokenizer/text_pattern.h>

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace palimpsest {

class Normalizer {
 public:
  /// Changes nothing.
  Normalizer() = default;
  /// NFC, NFD, NFKC, NFKD, Replace, Prepend, Sequence; null changes nothing. UserError naming file
  /// and component for any other.
  explicit Normalizer(const Component& component);

  bool changes_nothing() const {
    return steps_.empty();
  }
  /// Whether a text gets a prefix.
  bool prepends() const;
  /// Whether spaces are written as U+2581.
  bool marks_spaces() const;
  /// Whether parts of a text, cut between a letter and a space, are normalised as the whole is.
  bool works_on_parts() const;

  /// The empty text stays empty. `continued`: the text continues another, so it gets no prefix.
  void apply(std::string& text, bool continued, Regex::Matcher& matcher) const;

 private:
  enum class Form { kNfc, kNfd, kNfkc, kNfkd };
  struct Prepend {
    std::string prefix;
  };
  struct Replace {
    TextPattern pattern;
    std::string content;
    bool marks_spaces() const;
  };

  void add(const Component& component);

  std::vector<std::variant<Form, Prepend, Replace>> steps_;
};

/// Whether the text is surely in the form NFC already, by a look at its characters' ranges.
bool surely_nfc(std::string_view text);

} // namespace palimpsest
