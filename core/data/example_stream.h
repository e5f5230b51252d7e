#pragma once

// Documents as one stream of tokens, cut into rows.
//
//   const ExampleStream stream(examples, {.sequence_length = 2048, .vocabulary_size = 32000}, notes);
//
// Sample k is tokens [k T, (k + 1) T) of all examples one after the other; a partial row at the end
// is left out, with a note. Labels are shifted inside the row. With packing, the documents in a row
// do not see each other, and none predicts the next one's first token.

#include <palimpsest/core/data/example_source.h>

#include <memory>
#include <vector>

namespace palimpsest {

class ExampleStream final : public ExampleSource {
 public:
  /// Tokenizes all examples once. UserError as measure(), and where they fill no row.
  ExampleStream(
      std::unique_ptr<TokenExamples> examples,
      const ExampleSettings& settings,
      Notes& notes);

  int64_t size() const override {
    return ends_.back() / input_size();
  }
  std::vector<int64_t> documents(int64_t sample) const override;
  void read(int64_t sample, void* inputs, void* labels) const override;

 private:
  /// The example that holds a position of the stream.
  size_t example_at(int64_t position) const;
  int64_t begin_of(size_t example) const {
    return example == 0 ? 0 : ends_[example - 1];
  }

  std::vector<int64_t> ends_; // of each example, in tokens of the stream
};

} // namespace palimpsest
