#pragma once

// Training text as tokens, example by example: what rows of samples are made of.
//
//   const std::vector<ExampleSize> sizes = measure(examples, {.sequence_length = 512, .vocabulary_size = 32000});

#include <cstdint>
#include <functional>
#include <span>
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

/// How everything is tokenized for the first time.
struct FirstReading {
  int threads = 1;
  /// Ranks that all read the same share the work.
  int rank = 0;
  int ranks = 1;
  /// Adds numbers up over the ranks, in place; all of them call it alike. Throws on all of them where
  /// one has failed before.
  std::function<void(std::span<int64_t> numbers)> sum = {};
  /// Told now and then, by one thread at a time, which share of this rank's part is done. `name` is
  /// TokenExamples::name().
  std::function<void(const std::string& name, double done)> progress = {};
};

struct MeasureSettings {
  int64_t sequence_length = 0;
  int64_t vocabulary_size = 0;
  FirstReading reading = {};
};

/// Tokenizes every example once, on several threads and ranks. UserError of the first example that is
/// malformed or has an id beyond the vocabulary, whatever the threads and ranks; or where the ranks
/// find different numbers of examples.
std::vector<ExampleSize> measure(const TokenExamples& examples, const MeasureSettings& settings);

/// UserError unless an example still has the tokens that were counted.
void require_unchanged(
    const TokenExamples& examples,
    int64_t index,
    int64_t tokens,
    int64_t measured);

} // namespace palimpsest
