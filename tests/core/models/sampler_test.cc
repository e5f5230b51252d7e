#include <palimpsest/core/models/sampler.h>

#include <palimpsest/core/base/error.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <fstream>
#include <limits>
#include <map>

namespace palimpsest {
namespace {

SamplingSettings settings_of(const nlohmann::json& json) {
  return {
      .temperature = json.value("temperature", 1.0),
      .top_k = json.value("top_k", 0),
      .top_p = json.value("top_p", 1.0),
      .repetition_penalty = json.value("repetition_penalty", 1.0)};
}

TEST(Sampler, FiltersAsTheReference) {
  std::ifstream file(std::string(PALIMPSEST_TEST_DATA) + "/generations.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("filtered");
  ASSERT_GE(cases.size(), 10U);
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(one.at("settings").dump());
    const auto scores = one.at("scores").get<std::vector<float>>();
    const auto before = one.at("before").get<std::vector<int32_t>>();
    const auto expected = one.at("probabilities").get<std::vector<double>>();
    std::vector<double> found(expected.size(), 0);
    for (const auto& [id, p] : token_distribution(scores, before, settings_of(one["settings"]))) {
      found.at(static_cast<size_t>(id)) = p;
    }
    for (size_t id = 0; id < expected.size(); ++id) {
      EXPECT_NEAR(found[id], expected[id], 1e-6) << id;
      EXPECT_EQ(found[id] > 0, expected[id] > 0) << id;
    }
  }
}

// 20,000 draws: each token's count lies within four deviations of what its probability promises.
TEST(Sampler, DrawsByTheProbabilities) {
  const std::vector<float> scores = {0, 1, -1, 2, 0.5F};
  const SamplingSettings settings{.temperature = 0.8};
  constexpr int kDraws = 20000;
  std::map<int32_t, int> counts;
  for (int draw = 0; draw < kDraws; ++draw) {
    const SampleKey key{
        .seed = 5,
        .sequence = static_cast<uint64_t>(draw / 100),
        .index = static_cast<uint32_t>(draw % 100)};
    ++counts[sample_token(scores, {}, settings, key)];
  }
  double sum = 0;
  for (const float score : scores) {
    sum += std::exp(score / 0.8);
  }
  for (size_t id = 0; id < scores.size(); ++id) {
    const double p = std::exp(scores[id] / 0.8) / sum;
    const double deviation = std::sqrt(kDraws * p * (1 - p));
    EXPECT_NEAR(counts[static_cast<int32_t>(id)], kDraws * p, 4 * deviation) << id;
  }
}

TEST(Sampler, ADrawIsAFunctionOfItsKey) {
  const std::vector<float> scores(1000, 0);
  const auto draw = [&](const SampleKey& key) { return sample_token(scores, {}, {}, key); };
  const SampleKey key{.seed = 1, .sequence = 2, .index = 3};
  EXPECT_EQ(draw(key), draw(key));
  // Any part of the key makes another draw; that all three fall together is one in 10^9.
  const bool same = draw({.seed = 2, .sequence = 2, .index = 3}) == draw(key) &&
      draw({.seed = 1, .sequence = 3, .index = 3}) == draw(key) &&
      draw({.seed = 1, .sequence = 2, .index = 4}) == draw(key);
  EXPECT_FALSE(same);
}

TEST(Sampler, TheLikeliestNeedsNoDraw) {
  const std::vector<float> scores = {1, 3, 3, 2};
  const SamplingSettings greedy{.temperature = 0};
  for (uint32_t index = 0; index < 20; ++index) {
    EXPECT_EQ(sample_token(scores, {}, greedy, {.index = index}), 1); // the first of two
  }
  const std::vector<int32_t> before = {1, 1, 2};
  const SamplingSettings penalised{.temperature = 0, .repetition_penalty = 2};
  EXPECT_EQ(sample_token(scores, before, penalised, {}), 3); // 3 / 2 once, however often it came
}

TEST(Sampler, ScoresThatAreNoNumbersAreTheEnvironmentsError) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float infinite = std::numeric_limits<float>::infinity();
  for (const std::vector<float>& scores :
       {std::vector<float>{1, nan}, {nan, nan}, {infinite, 0}, {-infinite, -infinite}}) {
    for (const double temperature : {0.0, 1.0}) {
      EXPECT_THROW(sample_token(scores, {}, {.temperature = temperature}, {}), EnvironmentError);
    }
  }
  const std::vector<float> one_left = {-infinite, 2, -infinite};
  EXPECT_EQ(sample_token(one_left, {}, {}, {}), 1); // what is ruled out is never drawn
}

} // namespace
} // namespace palimpsest
