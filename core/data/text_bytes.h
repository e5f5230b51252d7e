#pragma once

// Text as bytes, for models with a vocabulary of at least 256 ids: each byte is the id of its
// value.
//
//   const TextBytes text({"a.txt", "b.txt"}, /*sequence_length=*/512, /*vocabulary_size=*/256, notes);
//
// The files make one stream in the order given, without a separator, and sample k is its bytes [k
// T, (k + 1) T), which may span files and cut a UTF-8 character. Labels are shifted inside the row;
// a partial row at the stream's end is left out, with a note.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/sample_source.h>

#include <filesystem>
#include <vector>

namespace palimpsest {

class TextBytes final : public SampleSource {
 public:
  /// UserError naming file and key: missing, no regular file, empty, a vocabulary below 256, less
  /// than one row in all.
  TextBytes(
      const std::vector<std::filesystem::path>& paths,
      int64_t sequence_length,
      int64_t vocabulary_size,
      Notes& notes);

  SampleKind kind() const override {
    return SampleKind::kTokens;
  }
  int64_t size() const override {
    return ends_.back() / sequence_length_;
  }
  int64_t input_size() const override {
    return sequence_length_;
  }
  int64_t label_size() const override {
    return sequence_length_;
  }
  void read(int64_t sample, void* inputs, void* labels) const override;

 private:
  std::vector<MappedFile> files_;
  std::vector<int64_t> ends_; // of each file in the stream
  int64_t sequence_length_;
};

} // namespace palimpsest
