#pragma once

// Texts that a model writes: any number of prompts, several at a time.
//
//   TextGenerator generator(model, text, {.sampling = {.temperature = 0.7}, .seed = 1});
//   generator.run(requests, [](size_t request, const std::string& piece) { std::cout << piece; });
//
// As soon as a text ends, the next prompt takes its place. A prompt's text depends on nothing but
// the model, the settings and the prompt's number: not on what is generated beside it.

#include <palimpsest/core/models/generator.h>
#include <palimpsest/core/models/sampler.h>
#include <palimpsest/launcher/compose/generation_text.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace palimpsest {

struct GenerationSettings {
  SamplingSettings sampling;
  uint64_t seed = 0;
  int64_t batch = 16; // texts that are generated at a time
  int64_t max_positions = 0; // of a text with its prompt; 0: no bound
  std::set<int32_t> end_ids; // tokens that end a text
  std::vector<std::string> stops; // texts that end a text
};

struct GenerationRequest {
  std::vector<int32_t> prompt;
  uint64_t number = 0; // of the prompt, for its draws
  int64_t max_new_tokens = 0; // fewer where the model has no position for them
  bool reply = false; // a chat's: its text does not go on from the prompt's
  /// Holds the first tokens of the prompt, maybe none, and afterwards all that the model has read;
  /// null: one of its own. It outlives the run.
  KvCache* cache = nullptr;
};

/// kLength: it has the most new tokens that it may have; kPositions: the model has none for more.
enum class FinishReason { kStop, kLength, kPositions, kInterrupted };
/// "stop", "length" of both, "interrupted".
const char* name_of(FinishReason reason);

struct GenerationResult {
  std::string text;
  std::vector<int32_t> tokens; // generated, without the one that ended the text
  FinishReason reason = FinishReason::kLength;
};

struct GenerationCallbacks {
  std::function<void(size_t request, const std::string& piece)> piece = {};
  std::function<void(size_t request, const GenerationResult& result)> done = {};
  std::function<bool()> interrupted = {}; // asked at each token
};

class TextGenerator {
 public:
  /// Generator and text outlive it.
  TextGenerator(
      const Generator& generator,
      const GenerationText& text,
      GenerationSettings settings);

  /// All of them, `settings.batch` at a time; calls back as pieces and ends come, in any order of
  /// requests. Each has room for a token.
  void run(std::span<const GenerationRequest> requests, const GenerationCallbacks& callbacks) const;

  /// The most new tokens that such a request may get; below 1 where its prompt alone takes all
  /// positions.
  int64_t room(const GenerationRequest& request) const;

 private:
  struct Sequence;

  void start(Sequence& sequence, const GenerationCallbacks& callbacks) const;
  void step(std::list<Sequence>& active, const GenerationCallbacks& callbacks) const;
  void accept(
      Sequence& sequence,
      std::span<const float> scores,
      const GenerationCallbacks& callbacks) const;
  void end(Sequence& sequence, FinishReason reason, const GenerationCallbacks& callbacks) const;

  const Generator& generator_;
  const GenerationText& text_;
  GenerationSettings settings_;
};

} // namespace palimpsest
