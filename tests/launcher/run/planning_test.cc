// Covers: launcher/compose/planning.cc
// Plans of a run from its config: policies' options reach them, and each number of micro-batches
// has one.

#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/compose/planning.h>
#include <palimpsest/tests/launcher/run/run_testing.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <set>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int kLayers = 6;

/// Six layers of one block, each a second forward, with an input of 10 bytes and a tape of 100.
ModelCost layers_cost() {
  ModelCost cost;
  cost.batch_bytes = 10;
  for (int layer = 0; layer < kLayers; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    cost.units.push_back({.name = name, .parameter_bytes = 4, .gradient_bytes = 4});
    cost.blocks.push_back(
        {.name = name,
         .reads = {{layer - 1, 0}},
         .value_bytes = {10},
         .units = {layer},
         .lean_bytes = 60,
         .full_bytes = 100,
         .forward_seconds = 1,
         .input_seconds = 1,
         .weight_seconds = 1,
         .forward_flops = 1,
         .backward_flops = 2});
    cost.layers.push_back({.name = name, .blocks = {layer, layer + 1}});
  }
  cost.blocks.push_back({.name = "loss", .reads = {{kLayers - 1, 0}}, .forward_seconds = 1});
  return cost;
}

PlanBook book(const std::string& policy) {
  const RunConfig config = load_config_text(
      "model: {family: mlp, input_size: 1, output_size: 1, hidden_size: 1, num_hidden_layers: 5}\n"
      "data: {files: [x.safetensors]}\n"
      "optimizer: {learning_rate: 1}\n"
      "activation_checkpointing: " +
          policy,
      "test.yaml");
  return {config, layers_cost()};
}

/// The blocks that the plan of one micro-batch runs twice.
std::set<int> reruns(const StepPlan& plan) {
  std::multiset<int> runs;
  for (const Op& op : plan) {
    if (op.kind == OpKind::kForward) {
      runs.insert(op.block);
    }
  }
  std::set<int> again;
  for (const int block : runs) {
    EXPECT_LE(runs.count(block), 2U);
    if (runs.count(block) == 2) {
      again.insert(block);
    }
  }
  return again;
}

TEST(PlanBook, KeyLayersByNameExpressionAndIndex) {
  const std::vector<std::pair<const char*, std::set<int>>> cases = {
      {"[layers.2]", {2}},
      {R"(["layers\\.[1-3]"])", {1, 2, 3}},
      {"[0, 5]", {0, 5}},
      {R"yaml([layers.0, "4", "layers\\.(2|4)"])yaml", {0, 2, 4}}};
  for (const auto& [entries, expected] : cases) {
    PlanBook plans = book(std::string("{policy: key_layers, recompute: ") + entries + "}");
    EXPECT_EQ(reruns(plans.plan(1)->plan), expected) << entries;
  }
  EXPECT_THAT(
      [] { book("{policy: key_layers, recompute: [layers.9]}"); },
      ThrowsMessage<UserError>(HasSubstr("'layers.9' names no layer")));
  EXPECT_THAT(
      [] { book("{policy: key_layers, recompute: [6]}"); },
      ThrowsMessage<UserError>(HasSubstr("there is no layer 6")));
  EXPECT_THAT(
      [] { book("{policy: key_layers, count: 7}"); },
      ThrowsMessage<UserError>(HasSubstr("the model has 6 layers")));
}

TEST(PlanBook, KeepLastSegmentDecidesWhetherTheLastOneRunsAgain) {
  const std::vector<std::pair<const char*, std::set<int>>> cases = {
      {"full", {0, 1, 2, 3, 4, 5}},
      {"{policy: full, keep_last_segment: true}", {0, 1, 2, 3, 4}},
      {"{policy: every_n, n: 2}", {0, 1, 2, 3}},
      {"{policy: every_n, n: 2, keep_last_segment: false}", {0, 1, 2, 3, 4, 5}},
      {"{policy: uniform, segments: 3}", {0, 1, 2, 3}},
      {"{policy: uniform, segments: 3, keep_last_segment: false}", {0, 1, 2, 3, 4, 5}},
      {"none", {}}};
  for (const auto& [policy, expected] : cases) {
    PlanBook plans = book(policy);
    EXPECT_EQ(reruns(plans.plan(1)->plan), expected) << policy;
    EXPECT_EQ(plans.report(3).ranks.front().reruns, 3 * static_cast<int64_t>(expected.size()))
        << policy;
  }
}

TEST(PlanBook, TheTapeOfTheConfigIsThePlans) {
  for (const auto& [tape, mode] :
       {std::pair("lean", TapeMode::kLean), std::pair("full", TapeMode::kFull)}) {
    for (const char* policy : {"none", "full"}) {
      PlanBook plans = book(std::string("{policy: ") + policy + ", tape: " + tape + "}");
      for (const Op& op : plans.plan(1)->plan) {
        if (op.kind == OpKind::kForward && op.block < kLayers && op.tape != TapeMode::kNone) {
          EXPECT_EQ(op.tape, mode) << policy;
        }
      }
    }
  }
}

TEST(PlanBook, EachNumberOfMicroBatchesHasItsOwnPlanMadeOnce) {
  PlanBook plans = book("none");
  const std::shared_ptr<const PlannedStep> three = plans.plan(3);
  EXPECT_EQ(three->job.micro_batches(), 3);
  EXPECT_EQ(plans.plan(1)->job.micro_batches(), 1);
  EXPECT_EQ(plans.plan(3), three);
  EXPECT_EQ(plans.report(3).ranks.front().forwards, 3 * (kLayers + 1));
  EXPECT_EQ(
      simulate(Plans{three->plan}, three->job).peak(TierId::kDevice),
      plans.report(3).peak(TierId::kDevice));
}

// Forward over six units and back: with room for one, all but the last are gathered twice; with
// room for all, each once.
TEST(Planning, TheGatherWindowFollowsTheConfig) {
  const auto gathers = [](const std::string& parallel) {
    const RunConfig config = load_config_text(
        "model: {family: mlp, input_size: 1, output_size: 1, hidden_size: 1, "
        "num_hidden_layers: 5}\n"
        "data: {files: [x.safetensors]}\n"
        "optimizer: {learning_rate: 1}\n"
        "parallel: {zero: 3" +
            parallel + "}",
        "test.yaml");
    PlanBook plans(config, layers_cost(), {.shard = 2});
    return std::ranges::count(plans.plan(1)->plan, OpKind::kGather, &Op::kind);
  };
  EXPECT_EQ(gathers(", prefetch: 0"), 2 * kLayers - 1);
  EXPECT_EQ(gathers(", prefetch: 1KiB"), kLayers);
  EXPECT_EQ(gathers(", reshard_after_forward: false"), kLayers);
  EXPECT_EQ(gathers(""), 2 * kLayers - 3); // three blocks' units stay
}

} // namespace
} // namespace palimpsest
