#include <palimpsest/tests/core/config/loading.h>

#include <palimpsest/core/config/derive.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RunConfig batch_config(
    std::optional<int64_t> global,
    std::optional<int64_t> micro,
    std::optional<int64_t> accumulation,
    int64_t stages = 1) {
  RunConfig config;
  auto& training = *config.mutable_training();
  if (global) {
    training.set_global_batch_size(*global);
  }
  if (micro) {
    training.set_micro_batch_size(*micro);
  }
  if (accumulation) {
    training.set_gradient_accumulation_steps(*accumulation);
  }
  config.mutable_pipeline()->set_stages(stages);
  return config;
}

std::string batch_refusal(const RunConfig& config, int64_t world) {
  try {
    derive_batch(config, world);
    return "";
  } catch (const UserError& error) {
    return error.what();
  }
}

struct Case {
  std::optional<int64_t> global, micro, accumulation;
  int64_t world, stages;
  BatchSizes expected; // global, micro, accumulation, data-parallel size
};

TEST(Derive, WhateverIsMissing) {
  constexpr auto none = std::nullopt;
  const std::vector<Case> cases = {
      {16, 2, none, 2, 1, {16, 2, 4, 2}},
      {16, none, none, 2, 1, {16, 8, 1, 2}},
      {16, none, 2, 2, 1, {16, 4, 2, 2}},
      {none, 2, 4, 2, 1, {16, 2, 4, 2}},
      {none, 2, none, 4, 1, {8, 2, 1, 4}},
      {none, none, 4, 1, 1, {32, 8, 4, 1}},
      {none, none, none, 1, 1, {8, 8, 1, 1}},
      {none, none, none, 3, 1, {24, 8, 1, 3}},
      {16, 2, 4, 2, 1, {16, 2, 4, 2}},
      {16, 2, none, 4, 2, {16, 2, 4, 2}}, // four ranks, two stages: two read data
      {1, none, none, 1, 1, {1, 1, 1, 1}},
      {12, 3, none, 4, 1, {12, 3, 1, 4}},
  };
  for (const Case& c : cases) {
    const BatchSizes batch =
        derive_batch(batch_config(c.global, c.micro, c.accumulation, c.stages), c.world);
    EXPECT_EQ(batch.global, c.expected.global);
    EXPECT_EQ(batch.micro, c.expected.micro);
    EXPECT_EQ(batch.accumulation, c.expected.accumulation);
    EXPECT_EQ(batch.data_parallel, c.expected.data_parallel);
    EXPECT_EQ(batch.global, batch.micro * batch.accumulation * batch.data_parallel);
  }
}

TEST(Derive, WhatDoesNotDivideIsRefusedWithAllNumbers) {
  EXPECT_THAT(
      batch_refusal(batch_config(8, 2, 1), 1),
      AllOf(
          HasSubstr("training.global_batch_size: 8 is not 2 (micro_batch_size) x 1"),
          HasSubstr("x 1 (data-parallel size) = 2")));
  EXPECT_THAT(
      batch_refusal(batch_config(128, 32, std::nullopt), 8),
      AllOf(
          HasSubstr("128 is no multiple of 32 (micro_batch_size) x 8 (data-parallel size) = 256"),
          HasSubstr("gradient_accumulation_steps would be 0.5")));
  EXPECT_THAT(
      batch_refusal(batch_config(16, std::nullopt, std::nullopt), 3),
      HasSubstr("micro_batch_size would be 5.333"));
  EXPECT_THAT(
      batch_refusal(batch_config(10, std::nullopt, 4), 1),
      HasSubstr("10 is no multiple of 4 (gradient_accumulation_steps)"));
  EXPECT_THAT(
      batch_refusal(batch_config(16, 2, std::nullopt, 2), 3),
      HasSubstr("3 ranks cannot be divided among 2 stages"));
  EXPECT_THAT(
      batch_refusal(batch_config(std::nullopt, 2147483647, 2147483647), 1 << 20),
      HasSubstr("too large"));
}

TEST(Derive, DataParallelSize) {
  EXPECT_EQ(derive_data_parallel(4, 2), 2);
  EXPECT_EQ(derive_data_parallel(4, 4), 1);
  EXPECT_THROW(derive_data_parallel(3, 2), UserError);
  EXPECT_THROW(derive_data_parallel(1, 2), UserError);
}

TEST(Derive, TheUsualLengthOfASample) {
  EXPECT_EQ(usual_sequence_length(131072), 512);
  EXPECT_EQ(usual_sequence_length(300), 300);
}

} // namespace
} // namespace palimpsest
