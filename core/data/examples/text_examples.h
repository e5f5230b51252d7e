#pragma once

// Plain text files as tokens, in pieces. Each file is a document, its end token at its end.
//
//   const TextExamples examples({"book.txt"}, encoder);

#include <palimpsest/core/data/examples/token_examples.h>
#include <palimpsest/core/data/examples/token_targets.h>
#include <palimpsest/core/data/records/text_chunks.h>

#include <filesystem>
#include <vector>

namespace palimpsest {

class TextExamples final : public TokenExamples {
 public:
  /// UserError as TextChunks.
  TextExamples(const std::vector<std::filesystem::path>& paths, TextEncoder encoder);

  int64_t size() const override {
    return ends_.back();
  }
  TokenExample read(int64_t index) const override;
  bool begins_document(int64_t index) const override {
    return place(index).chunk == 0;
  }
  std::string location(int64_t index) const override;
  std::string name() const override {
    return files_.front().path().string();
  }
  /// Over all files, see TextChunks.
  int64_t forced_cuts() const;

 private:
  struct Place {
    const TextChunks& file;
    int64_t chunk;
  };
  Place place(int64_t index) const;

  TextEncoder encoder_;
  std::vector<TextChunks> files_;
  std::vector<int64_t> ends_; // of each file, in chunks
};

} // namespace palimpsest
