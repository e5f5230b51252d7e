#pragma once

// Training text as tokens, example by example: what rows of samples are made of.
//
//   const std::vector<ExampleSize> sizes = measure(examples, {.sequence_length = 512, .vocabulary_size = 32000});

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

struct TokenExample {
  std::vector<int32_t> ids;
  std::vector<uint8_t> targets; ///< for each id, whether it is to be learnt
};

/// Examples by number. Reading changes nothing and may happen from several threads.
class TokenExamples {
 public:
  virtual ~TokenExamples() = default;

  virtual int64_t size() const = 0;
  /// Tokenizes the example. UserError with its location where it is malformed.
  virtual TokenExample read(int64_t index) const = 0;
  /// Whether the example begins a document rather than going on with the one before.
  virtual bool begins_document(int64_t /*index*/) const {
    return true;
  }
  /// File and line, for messages.
  virtual std::string location(int64_t index) const = 0;
  /// All of them, for messages: the first file.
  virtual std::string name() const = 0;
};

struct ExampleSize {
  int32_t tokens = 0; ///< before anything is cut
  bool learns =
      false; ///< whether a target lies in the first `sequence_length` tokens after the first
};

struct MeasureSettings {
  int64_t sequence_length = 0;
  int64_t vocabulary_size = 0;
  int threads = 1;
};

/// Tokenizes every example once, on several threads. UserError of the first example that is
/// malformed or has an id beyond the vocabulary, whatever the threads.
std::vector<ExampleSize> measure(const TokenExamples& examples, const MeasureSettings& settings);

} // namespace palimpsest
