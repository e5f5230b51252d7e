#pragma once

// Conversations and other examples as samples: each in a row of its own, or several packed into one.
//
//   const ExampleRows rows(examples, {.sequence_length = 2048, .packing = true, .vocabulary_size = 32000}, notes);
//
// An example longer than a row is cut; one without a target in what is left teaches nothing and is
// left out. Both are counted in the notes. What an example leaves of its row is padding: id 0
// without a target, wherever it stands and whatever ids the tokenizer calls padding or end.

#include <palimpsest/core/data/example_source.h>

#include <memory>
#include <vector>

namespace palimpsest {

class ExampleRows final : public ExampleSource {
 public:
  /// Tokenizes all examples once. UserError as measure(), and where no example has a target.
  ExampleRows(
      std::unique_ptr<TokenExamples> examples,
      const ExampleSettings& settings,
      Notes& notes);

  int64_t size() const override {
    return std::ssize(row_ends_);
  }
  std::vector<int64_t> documents(int64_t sample) const override;
  void read(int64_t sample, void* inputs, void* labels) const override;

 private:
  void choose(Notes& notes);
  void make_rows(Notes& notes);
  struct Range {
    size_t begin;
    size_t end;
  };
  Range row(int64_t sample) const;

  std::vector<int64_t> chosen_; // examples, row by row
  std::vector<int32_t> lengths_; // of each of them, at most a row
  std::vector<int64_t> row_ends_; // in chosen_
};

} // namespace palimpsest
