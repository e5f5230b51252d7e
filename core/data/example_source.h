#pragma once

// What samples made of tokenized examples share, whichever way they fill their rows.
//
//   class ExampleRows final : public ExampleSource { ... };       // an example, or several, a row
//   class ExampleStream final : public ExampleSource { ... };     // rows cut from one stream

#include <palimpsest/core/data/examples/token_examples.h>
#include <palimpsest/core/data/records/mapped_data.h>
#include <palimpsest/core/data/sample_source.h>

#include <memory>
#include <utility>
#include <vector>

namespace palimpsest {

struct ExampleSettings {
  int64_t sequence_length = 0; ///< of a row
  bool packing = false;
  int64_t vocabulary_size = 0;
  FirstReading reading = {};
};

class ExampleSource : public SampleSource {
 public:
  SampleKind kind() const final {
    return SampleKind::kTokens;
  }
  int64_t input_size() const final {
    return settings_.sequence_length;
  }
  int64_t label_size() const final {
    return settings_.sequence_length;
  }
  bool packed() const final {
    return settings_.packing;
  }

 protected:
  /// UserError unless a row has a target.
  ExampleSource(std::unique_ptr<TokenExamples> examples, const ExampleSettings& settings)
      : examples_(std::move(examples)), settings_(settings) {
    check_sequence_length(settings.sequence_length);
  }

  const TokenExamples& tokenized() const {
    return *examples_;
  }
  /// Tokenizes all of them once (token_examples.h).
  std::vector<ExampleSize> measure() const {
    return palimpsest::measure(
        *examples_,
        {.sequence_length = settings_.sequence_length,
         .vocabulary_size = settings_.vocabulary_size,
         .reading = settings_.reading});
  }

 private:
  std::unique_ptr<TokenExamples> examples_;
  ExampleSettings settings_;
};

} // namespace palimpsest
