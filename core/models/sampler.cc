#include <palimpsest/core/models/sampler.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/philox.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

namespace palimpsest {
namespace {

std::vector<float> penalised(
    std::span<const float> scores,
    std::span<const int32_t> before,
    double penalty) {
  std::vector<float> result(scores.begin(), scores.end());
  if (penalty != 1) {
    for (const int32_t id : std::set<int32_t>(before.begin(), before.end())) {
      float& score = result.at(static_cast<size_t>(id));
      score = static_cast<float>(score < 0 ? score * penalty : score / penalty);
    }
  }
  return result;
}

/// The place of the largest.
size_t best_of(const std::vector<float>& scores) {
  const bool numbers =
      std::ranges::none_of(scores, [](const float score) { return std::isnan(score); });
  const auto best = std::ranges::max_element(scores);
  if (!numbers || best == scores.end() || std::isinf(*best)) {
    throw EnvironmentError(
        "the model's scores for the next token are not finite: its weights are broken, or too "
        "large for the precision that it computes in");
  }
  return static_cast<size_t>(best - scores.begin());
}

/// Those whose score is at least the k-th largest.
void keep_top_k(
    std::vector<TokenProbability>& tokens,
    const std::vector<float>& scores,
    int64_t k) {
  std::vector<float> order = scores;
  const auto last = order.begin() + (k - 1);
  std::ranges::nth_element(order, last, std::greater<>());
  std::erase_if(tokens, [&](const TokenProbability& token) {
    return scores[static_cast<size_t>(token.id)] < *last;
  });
}

void normalise(std::vector<TokenProbability>& tokens) {
  double sum = 0;
  for (const TokenProbability& token : tokens) {
    sum += token.probability;
  }
  for (TokenProbability& token : tokens) {
    token.probability /= sum;
  }
}

/// The likeliest, down to the one with which they reach `top_p`.
void keep_top_p(std::vector<TokenProbability>& tokens, double top_p) {
  // All that are less likely than this are together less likely than what may be left out.
  const double floor = (1 - top_p) / static_cast<double>(tokens.size());
  std::erase_if(tokens, [&](const TokenProbability& token) { return token.probability < floor; });
  std::ranges::sort(tokens, [](const TokenProbability& a, const TokenProbability& b) {
    return a.probability != b.probability ? a.probability > b.probability : a.id < b.id;
  });
  double reached = 0;
  size_t count = 0;
  while (count < tokens.size() && (count == 0 || reached < top_p)) {
    reached += tokens[count++].probability;
  }
  tokens.resize(count);
}

/// In [0, 1), with 53 bits.
double uniform(const SampleKey& key) {
  const auto low = [](uint64_t word) { return static_cast<uint32_t>(word); };
  const auto high = [](uint64_t word) { return static_cast<uint32_t>(word >> 32); };
  constexpr uint32_t kSampling = 0x5A3D1E01; // apart from what else draws with this seed
  const auto words = kernels::philox4x32_10(
      {key.index, low(key.sequence), high(key.sequence), kSampling},
      {low(key.seed), high(key.seed)});
  const uint64_t bits = (uint64_t{words[0]} << 32 | words[1]) >> 11;
  return static_cast<double>(bits) * 0x1p-53;
}

} // namespace

std::vector<TokenProbability> token_distribution(
    std::span<const float> scores,
    std::span<const int32_t> before,
    const SamplingSettings& settings) {
  check(settings.temperature > 0, "a distribution at temperature {}", settings.temperature);
  const std::vector<float> of = penalised(scores, before, settings.repetition_penalty);
  const double best = of[best_of(of)];
  std::vector<TokenProbability> tokens;
  tokens.reserve(of.size());
  for (size_t id = 0; id < of.size(); ++id) {
    tokens.push_back(
        {.id = static_cast<int32_t>(id),
         .probability = std::exp((static_cast<double>(of[id]) - best) / settings.temperature)});
  }
  if (settings.top_k > 0 && settings.top_k < std::ssize(of)) {
    keep_top_k(tokens, of, settings.top_k);
  }
  normalise(tokens);
  if (settings.top_p < 1) {
    keep_top_p(tokens, settings.top_p);
    normalise(tokens);
  }
  return tokens;
}

int32_t sample_token(
    std::span<const float> scores,
    std::span<const int32_t> before,
    const SamplingSettings& settings,
    const SampleKey& key) {
  if (settings.temperature == 0) {
    return static_cast<int32_t>(best_of(penalised(scores, before, settings.repetition_penalty)));
  }
  const std::vector<TokenProbability> tokens = token_distribution(scores, before, settings);
  double left = uniform(key);
  for (const TokenProbability& token : tokens) {
    left -= token.probability;
    if (left < 0) {
      return token.id;
    }
  }
  return std::ranges::max(tokens, {}, &TokenProbability::probability).id; // rounding left a rest
}

} // namespace palimpsest
