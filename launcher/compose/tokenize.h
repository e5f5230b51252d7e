#pragma once

// Text files to token files, and to new tokenizers.
//
//   const TokenizeSummary made = tokenize(
//       {.text = {.files = {"book.txt"}}, .tokenizer = "Llama-3.2-1B", .output = "book.bin"});
//   train_tokenizer({.text = {.files = {"book.txt"}}, .vocabulary_size = 32000, .output = "tok"});
//
// Plain text files are a document each; JSON files (.json, .jsonl) hold one in every record. Results
// depend on no number of threads, and files may be larger than memory.

#include <palimpsest/core/data/sample_source.h>
#include <palimpsest/core/data/tokenizer/word_scanner.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

namespace palimpsest {

struct TextFiles {
  std::vector<std::filesystem::path> files;
  std::string field = "text"; ///< of the records of JSON files
  int threads = 1;
};

/// Called now and then with the share that is done, from 0 to 1, and what it has given.
using TextProgress = std::function<void(double done, int64_t tokens)>;

struct TokenizeSettings {
  TextFiles text;
  std::filesystem::path tokenizer; ///< its folder
  std::string format = "text"; ///< of the records; one of conversations goes through a template
  std::string chat_template; ///< a name or a file; empty: the tokenizer folder's
  std::filesystem::path output;
  int64_t id_bytes = 0; ///< 2 or 4; 0: 2 where every id of the vocabulary fits
};

struct TokenizeSummary {
  int64_t documents = 0;
  int64_t tokens = 0;
  int64_t id_bytes = 0;
  Notes notes;
};

/// Writes the tokens of all documents in order, whole or not at all, in the form that the data format
/// `tokens` reads. Each document has the tokenizer's end token behind it, and its beginning token in
/// front where the tokenizer adds one. UserError naming the file, and the line where there is one:
/// what cannot be read, is no UTF-8, or lacks the field.
TokenizeSummary tokenize(const TokenizeSettings& settings, const TextProgress& progress = {});

struct TrainTokenizerSettings {
  TextFiles text;
  int64_t vocabulary_size = 0; ///< special tokens included
  std::vector<std::string> special = {"<|endoftext|>"}; ///< the first one ends documents
  WordRule words = WordRule::kLlama3;
  std::filesystem::path output; ///< a folder
};

struct TrainTokenizerSummary {
  int64_t words = 0; ///< different ones
  int64_t tokens = 0;
  Notes notes;
};

/// Trains a byte-level tokenizer and writes its folder. UserError as tokenize, and where the text is
/// too small for so many tokens.
TrainTokenizerSummary train_tokenizer(
    const TrainTokenizerSettings& settings,
    const TextProgress& progress = {});

} // namespace palimpsest
