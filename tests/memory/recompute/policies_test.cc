// Covers: memory/recompute/none.cc
// Covers: memory/recompute/full.cc
// Covers: memory/recompute/every_n.cc
// Covers: memory/recompute/uniform.cc
// Covers: memory/recompute/sqrt.cc
// Covers: memory/recompute/key_layers.cc
// Covers: memory/recompute/layer_runs.cc

#include <palimpsest/memory/recompute/policies.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

namespace palimpsest::testing {
namespace {

using ::testing::ElementsAre;

/// Embedding 0, layers of one block each from 1 on, head.
ModelCost layers(int count) {
  return chain({.layers = count, .per_layer = 1});
}

/// Blocks [begin, end) of the segments that run again.
std::vector<std::pair<int, int>> again(const Segments& segments) {
  std::vector<std::pair<int, int>> runs;
  for (const Segment& segment : segments) {
    EXPECT_EQ(segment.tape, TapeMode::kNone);
    runs.emplace_back(segment.blocks.begin, segment.blocks.end);
  }
  return runs;
}

TEST(Policies, DecideTheSegmentsOfTheirDefinitions) {
  using Run = std::pair<int, int>;
  const ModelCost ten = layers(10);
  EXPECT_THAT(again(none(ten, {})), ElementsAre());
  EXPECT_EQ(again(full(ten, {})).size(), 10U);
  EXPECT_THAT(again(full(layers(3), {})), ElementsAre(Run(1, 2), Run(2, 3), Run(3, 4)));
  EXPECT_THAT(
      again(full(layers(3), {.keep_last_segment = true})), ElementsAre(Run(1, 2), Run(2, 3)));
  EXPECT_THAT(again(every_n(ten, {.n = 4})), ElementsAre(Run(1, 5), Run(5, 9)));
  EXPECT_THAT(
      again(every_n(ten, {.n = 4, .keep_last_segment = false})),
      ElementsAre(Run(1, 5), Run(5, 9), Run(9, 11)));
  // floor(i * 10 / 3): 0, 3, 6, 10
  EXPECT_THAT(
      again(uniform(ten, {.segments = 3, .keep_last_segment = false})),
      ElementsAre(Run(1, 4), Run(4, 7), Run(7, 11)));
  EXPECT_EQ(uniform(ten, {}), uniform(ten, {.segments = 3})); // ceil(10 / 4)
  EXPECT_EQ(sqrt_layers(ten, {}), uniform(ten, {.segments = 3})); // 3.16
  EXPECT_EQ(sqrt_layers(layers(7), {}), uniform(layers(7), {.segments = 3})); // 2.65
}

TEST(Policies, LayersOfSeveralBlocksStayWhole) {
  const Segments segments = every_n(chain({.layers = 4, .per_layer = 3}), {.n = 2});
  EXPECT_THAT(again(segments), ElementsAre(std::pair(1, 7)));
}

TEST(Policies, KeyLayersTakeNamesIndicesAndRegularExpressions) {
  const ModelCost twelve = layers(12);
  const auto picked = [&](std::vector<std::string> entries) {
    std::vector<int> found;
    for (const auto& [begin, end] : again(key_layers(twelve, {.recompute = std::move(entries)}))) {
      found.push_back(begin - 1);
    }
    return found;
  };
  EXPECT_THAT(
      picked({"layers.1"}), ElementsAre(1)); // a name, not a pattern that also means layers.10
  EXPECT_THAT(picked({"layers\\.1."}), ElementsAre(10, 11));
  EXPECT_THAT(picked({"layers\\.[2-4]", "0", "layers.3"}), ElementsAre(0, 2, 3, 4));
}

TEST(Policies, CountKeepsTheLayersThatSaveLeastPerSecond) {
  ModelCost four = layers(4); // bytes per second of layers 0 to 3: 10, 40, 5, 10
  const double seconds[] = {1, 0.5, 4, 1};
  const int64_t bytes[] = {10, 20, 20, 10};
  for (size_t layer = 0; layer < 4; ++layer) {
    four.blocks[layer + 1].forward_seconds = seconds[layer];
    four.blocks[layer + 1].full_bytes = bytes[layer];
  }
  using Run = std::pair<int, int>;
  EXPECT_THAT(again(key_layers(four, {.count = 3})), ElementsAre(Run(2, 3)));
  EXPECT_THAT(
      again(key_layers(four, {.count = 2})),
      ElementsAre(Run(1, 2), Run(2, 3))); // of equals the later is kept
  EXPECT_THAT(again(key_layers(four, {.count = 1})), ElementsAre(Run(1, 2), Run(2, 3), Run(4, 5)));
  EXPECT_THAT(again(key_layers(four, {.count = 4})), ElementsAre());
}

TEST(Policies, TapesAreAChoice) {
  const Segments segments = key_layers(
      layers(3), {.recompute = {"1"}, .kept_tape = TapeMode::kLean, .rerun_tape = TapeMode::kLean});
  const Segments expected{
      {{1, 2}, TapeMode::kLean, {}},
      recomputed({2, 3}, TapeMode::kLean),
      {{3, 4}, TapeMode::kLean, {}}};
  EXPECT_EQ(segments, expected);
}

TEST(Policies, RefuseWhatTheyDoNotUnderstand) {
  const ModelCost four = layers(4);
  ModelCost unmeasured = four;
  unmeasured.blocks[2].forward_seconds = 0;
  const std::vector<std::pair<std::string, std::function<void()>>> cases{
      {"n: 0 is not allowed", [&] { every_n(four, {.n = 0}); }},
      {"give 1 to 4", [&] { every_n(four, {.n = 5}); }},
      {"every_n needs it", [&] { every_n(four, {}); }},
      {"segments: 5 is not allowed", [&] { uniform(four, {.segments = 5}); }},
      {"count: 5 is not allowed", [&] { key_layers(four, {.count = 5}); }},
      {"count: -1 is not allowed", [&] { key_layers(four, {.count = -1}); }},
      {"not both", [&] { key_layers(four, {.recompute = {"1"}, .count = 1}); }},
      {"needs either", [&] { key_layers(four, {}); }},
      {"no layer 4", [&] { key_layers(four, {.recompute = {"4"}}); }},
      {"names no layer", [&] { key_layers(four, {.recompute = {"layer.1"}}); }},
      {"names no layer", [&] { key_layers(four, {.recompute = {""}}); }},
      {"regular expression", [&] { key_layers(four, {.recompute = {"layers.(1"}}); }},
      {"layers.1 has no measured seconds", [&] { key_layers(unmeasured, {.count = 1}); }},
      {"n does not apply to policy full", [&] { full(four, {.n = 2}); }},
      {"does not apply to policy none", [&] { none(four, {.keep_last_segment = true}); }},
      {"lean or full", [&] { full(four, {.rerun_tape = TapeMode::kNone}); }},
      {"none, full, every_n, uniform, sqrt, key_layers", [&] { find_policy("ful"); }},
  };
  for (const auto& [message, run] : cases) {
    try {
      run();
      ADD_FAILURE() << "accepted: " << message;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr(message));
    }
  }
}

} // namespace
} // namespace palimpsest::testing
