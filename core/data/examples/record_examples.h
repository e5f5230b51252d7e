#pragma once

// The records of JSON files as tokens.
//
//   const RecordExamples examples({"chat.jsonl"}, format, text, encoder.encode);

#include <palimpsest/core/data/examples/example_text.h>
#include <palimpsest/core/data/examples/token_examples.h>
#include <palimpsest/core/data/examples/token_targets.h>
#include <palimpsest/core/data/records/places.h>
#include <palimpsest/core/data/records/record_file.h>
#include <palimpsest/core/data/records/record_format.h>

#include <filesystem>
#include <vector>

namespace palimpsest {

class RecordExamples final : public TokenExamples {
 public:
  /// The files in the order given. UserError as RecordFile.
  RecordExamples(
      const std::vector<std::filesystem::path>& paths,
      RecordFormat format,
      ExampleText text,
      TextEncoder encoder);

  int64_t size() const override {
    return places_.size();
  }
  TokenExample read(int64_t index) const override;
  std::string location(int64_t index) const override;
  std::string name() const override {
    return files_.front().path().string();
  }

 private:
  RecordFormat format_;
  ExampleText text_;
  TextEncoder encoder_;
  std::vector<RecordFile> files_;
  Places places_;
};

} // namespace palimpsest
