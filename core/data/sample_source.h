#pragma once

// Samples by number: what a data file is once it is open.
//
//   std::vector<int64_t> ids(source.input_size()), labels(source.label_size());
//   source.read(17, ids.data(), labels.data());

#include <palimpsest/core/base/labels.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

enum class SampleKind {
  kTokens, ///< inputs and labels are int64 ids, equally many
  kFeatures, ///< inputs and labels are floats
};

/// What opening found worth telling: a row that was left out, a format that was guessed.
using Notes = std::vector<std::string>;

/// All samples have equal sizes. Reading changes nothing and may happen from several threads.
class SampleSource {
 public:
  virtual ~SampleSource() = default;

  virtual SampleKind kind() const = 0;
  /// Number of samples.
  virtual int64_t size() const = 0;
  /// Elements of one sample's inputs and of its labels.
  virtual int64_t input_size() const = 0;
  virtual int64_t label_size() const = 0;

  /// Whether samples hold several documents that must not see each other.
  virtual bool packed() const {
    return false;
  }
  /// Tokens of the documents in a sample, in order; what is left of the sample is padding. Samples
  /// that are not packed are one document.
  virtual std::vector<int64_t> documents(int64_t /*sample*/) const {
    return {input_size()};
  }

  /// Writes sample `sample`: int64_t or float elements by kind(). Labels of tokens are shifted:
  /// labels[t] is the target of position t, that is the sample's token t + 1, and the last one of a
  /// document is kIgnoredLabel, as padding is.
  virtual void read(int64_t sample, void* inputs, void* labels) const = 0;
};

} // namespace palimpsest
