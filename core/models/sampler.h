#pragma once

// The next token from a model's scores.
//
//   const SamplingSettings settings{.temperature = 0.7, .top_p = 0.9};
//   int32_t id = sample_token(scores, ids_so_far, settings, {.seed = 42, .sequence = 3, .index = 17});
//
// Settings mean what they mean in transformers, in its order: repetition penalty (Keskar et al.,
// 2019), temperature, top-k (Fan et al., 2018), top-p (Holtzman et al., 2020). A draw is a pure
// function of its key: it depends on no batch, thread or earlier draw.

#include <cstdint>
#include <span>
#include <vector>

namespace palimpsest {

struct SamplingSettings {
  double temperature = 1; // 0: the likeliest token, without a draw
  int64_t top_k = 0; // only the k likeliest, and those as likely as the last of them; 0: all
  double top_p = 1; // only the likeliest that together reach this probability
  double repetition_penalty =
      1; // scores of tokens that came before: divided by it, or times it where negative
};

struct SampleKey {
  uint64_t seed = 0;
  uint64_t sequence = 0;
  uint32_t index = 0; // of the token in its sequence
};

struct TokenProbability {
  int32_t id = 0;
  double probability = 0;
};

/// The tokens that may be drawn, for a temperature above 0. Probabilities sum to 1.
std::vector<TokenProbability> token_distribution(
    std::span<const float> scores,
    std::span<const int32_t> before,
    const SamplingSettings& settings);

/// `scores`: one for each id; `before`: prompt and generated tokens. Of equally likely tokens a
/// temperature of 0 takes the first. EnvironmentError where a score is not a number or the best is
/// infinite.
int32_t sample_token(
    std::span<const float> scores,
    std::span<const int32_t> before,
    const SamplingSettings& settings,
    const SampleKey& key);

} // namespace palimpsest
