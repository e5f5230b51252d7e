#pragma once

// Trains a byte-level byte-pair encoding and writes it as a folder that transformers loads.
//
//   WordCounts counts(WordRule::kLlama3);
//   counts.add(text);                                    // or several of them, joined by merge()
//   const TrainedBpe bpe = train_bpe(counts, /*tokens=*/32000);
//   write_tokenizer(bpe, {"<|endoftext|>"}, "my-tokenizer");
//
// The result depends on the words' counts alone, and is that of the reference library's BpeTrainer
// with min_frequency 2: the most frequent pair is merged first, of equally frequent ones that of the
// lower ids.

#include <palimpsest/core/data/tokenizer/word_scanner.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace palimpsest {

/// How often each word occurs.
class WordCounts {
 public:
  /// Longer words, such as encoded images, are counted but not trained on: no token of use lies in
  /// them.
  static constexpr size_t kLongestWord = 1000;

  explicit WordCounts(WordRule rule) : rule_(rule) {}

  WordRule rule() const {
    return rule_;
  }
  /// Counts the words of valid UTF-8. Texts add up where they are cut as last_word_cut says.
  void add(std::string_view text);
  /// Takes over the counts of another.
  void merge(const WordCounts& other);

  int64_t different_words() const {
    return static_cast<int64_t>(counts_.size());
  }
  int64_t long_words() const {
    return long_words_;
  }
  /// In the order of the bytes.
  std::vector<std::pair<std::string, int64_t>> sorted() const;

 private:
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  WordRule rule_;
  std::unordered_map<std::string, int64_t, Hash, std::equal_to<>> counts_;
  int64_t long_words_ = 0;
};

struct TrainedBpe {
  WordRule rule = WordRule::kLlama3;
  std::vector<std::string> tokens; ///< by id: the 256 bytes, then merged ones; as bytes
  std::vector<std::pair<int32_t, int32_t>> merges;
};

/// Merges until there are `tokens` >= 256 of them. UserError where no pair is left that occurs
/// twice, with the number that can be had, `special` tokens that the vocabulary gets besides
/// included. `progress` is called with the number of tokens now and then.
TrainedBpe train_bpe(
    const WordCounts& counts,
    int64_t tokens,
    const std::function<void(int64_t)>& progress = {},
    int64_t special = 0);

/// Writes tokenizer.json and tokenizer_config.json. The special tokens follow the others; the first
/// of them, if any, ends and begins texts. UserError where one is empty, occurs twice or is a token
/// anyway, and where the folder is not empty.
void write_tokenizer(
    const TrainedBpe& bpe,
    const std::vector<std::string>& special,
    const std::filesystem::path& folder);

} // namespace palimpsest
