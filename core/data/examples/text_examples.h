#pragma once

// Plain text files as tokens, in pieces. Each file is a document, its end token at its end.
//
//   const TextExamples examples({"book.txt"}, encoder);

#include <palimpsest/core/data/examples/token_examples.h>
#include <palimpsest/core/data/examples/token_targets.h>
#include <palimpsest/core/data/records/places.h>
#include <palimpsest/core/data/records/text_chunks.h>

#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest {

class TextExamples final : public TokenExamples {
 public:
  /// UserError as TextChunks.
  TextExamples(const std::vector<std::filesystem::path>& paths, TextEncoder encoder);

  int64_t size() const override {
    return places_.size();
  }
  TokenExample read(int64_t index) const override;
  bool begins_document(int64_t index) const override {
    return places_[index].item == 0;
  }
  std::string location(int64_t index) const override;
  std::string name() const override {
    return files_.front().path().string();
  }
  /// Over all files, see TextChunks.
  int64_t forced_cuts() const;
  /// What users should know of them.
  std::vector<std::string> notes() const;

 private:
  TextEncoder encoder_;
  std::vector<TextChunks> files_;
  Places places_;
};

} // namespace palimpsest
