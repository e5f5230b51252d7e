#pragma once

// How a tokenizer splits normalised text into words, the pieces that merges never cross.
//
//   const PreTokenizer pre_tokenizer(Component(json.at("pre_tokenizer"), file, "pre_tokenizer"));
//   Words words{.text = "a  b"};
//   pre_tokenizer.split(words, /*at_start=*/true, matcher);     // ends 1, 2, 4: "a", " ", " b"

#include <palimpsest/core/data/tokenizer/component.h>
#include <palimpsest/core/data/tokenizer/regex.h>
#include <palimpsest/core/data/tokenizer/text_pattern.h>
#include <palimpsest/core/data/tokenizer/word_scanner.h>

#include <cstddef>
#include <string>
#include <variant>
#include <vector>

namespace palimpsest {

/// Consecutive pieces of a text, none of them empty.
struct Words {
  std::string text;
  std::vector<size_t> ends;
};

/// At which places the words of a text's parts are those of the whole.
enum class WordCuts {
  kNone,
  kSpaces, ///< between a letter and a space
  kWhitespace, ///< between a letter and a space or line end
  kModel, ///< there are no words: as the merges have it
};

class PreTokenizer {
 public:
  /// One word.
  PreTokenizer() = default;
  /// ByteLevel, Split, Digits, Metaspace, Sequence; null is one word. UserError naming file and
  /// component for any other, and for what follows ByteLevel.
  explicit PreTokenizer(const Component& component);

  /// Whether merges are of bytes, so that tokens are written in GPT-2's alphabet.
  bool byte_level() const {
    return byte_level_;
  }
  /// `spaces_marked`: the normalizer leaves no space in the text.
  WordCuts cuts(bool spaces_marked) const;

  /// Splits words.text, which is valid UTF-8 and may get a prefix or lose pieces. `at_start`: the
  /// text is the beginning of the whole input.
  void split(Words& words, bool at_start, Regex::Matcher& matcher) const;

 private:
  enum class Behavior { kRemoved, kIsolated, kContiguous, kMergedWithPrevious, kMergedWithNext };
  enum class Scheme { kAlways, kFirst, kNever };
  struct Split {
    TextPattern pattern;
    Behavior behavior;
    bool invert;
  };
  struct Digits {
    bool individual;
  };
  struct Metaspace {
    std::string replacement;
    Scheme scheme;
    bool split;
  };
  struct SpacePrefix {};
  struct Part {
    size_t begin;
    size_t end;
    bool matches;
  };

  using Step = std::variant<WordRule, Split, Digits, Metaspace, SpacePrefix>;

  void add(const Component& component);
  void add_split(const Component& component);
  void add_metaspace(const Component& component);
  static void fold(std::vector<Part>& parts, Behavior behavior);
  static std::vector<Part> parts_of(
      std::string& word,
      const Step& step,
      bool at_start,
      Regex::Matcher& matcher);
  static std::vector<Part> parts_of(
      std::string_view word,
      const Split& step,
      Regex::Matcher& matcher);
  static std::vector<Part> parts_of(std::string_view word, const Digits& step);
  static std::vector<Part> parts_of(std::string& word, const Metaspace& step, bool at_start);

  std::vector<Step> steps_;
  bool byte_level_ = false;
};

} // namespace palimpsest
