#pragma once

// Token ids as a flat little-endian file of uint16 or uint32, without a header.
//
//   Notes notes;
//   const TokenFile tokens("train.bin", /*sequence_length=*/512, /*vocabulary_size=*/32000, notes);
//
// Sample k is tokens [k T, (k + 1) T) of the file; a partial row at the end is left out, with a
// note. Labels are shifted inside the row, so the row's last position is no target and no sample
// reads another's tokens.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/sample_source.h>

#include <filesystem>

namespace palimpsest {

class TokenFile final : public SampleSource {
 public:
  /// Reads the whole file once to check it. The file holds uint32 where the vocabulary exceeds
  /// 65,536 ids, and also where every second uint16 is 0 (with a note), else uint16. UserError
  /// naming file and key: missing, no regular file, empty, a length that is no multiple of an id,
  /// an id beyond the vocabulary, less than one row.
  TokenFile(
      const std::filesystem::path& path,
      int64_t sequence_length,
      int64_t vocabulary_size,
      Notes& notes);

  SampleKind kind() const override {
    return SampleKind::kTokens;
  }
  int64_t size() const override {
    return rows_;
  }
  int64_t input_size() const override {
    return sequence_length_;
  }
  int64_t label_size() const override {
    return sequence_length_;
  }
  void read(int64_t sample, void* inputs, void* labels) const override;

  /// Bytes of an id in the file: 2 or 4.
  int64_t id_bytes() const {
    return id_bytes_;
  }

 private:
  MappedFile file_;
  int64_t sequence_length_;
  int64_t id_bytes_ = 2;
  int64_t rows_ = 0;
};

} // namespace palimpsest
