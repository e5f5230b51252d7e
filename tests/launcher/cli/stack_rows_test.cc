// Covers: launcher/compose/stack_rows.cc
#include <palimpsest/launcher/compose/stack_rows.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/loader.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

// Its own settings stand against most of what the rows set.
constexpr const char* kText = R"(
model: {preset: tiny}
data: {files: [corpus.txt]}
training: {global_batch_size: 8, micro_batch_size: 2}
optimizer: {learning_rate: 1e-3}
activation_checkpointing: {policy: every_n, n: 2}
precision: bf16
)";

std::vector<std::string> names(const std::vector<StackRun>& rows) {
  std::vector<std::string> found;
  for (const StackRun& row : rows) {
    found.push_back(row.name);
  }
  return found;
}

RunConfig config_of(const StackRun& row) {
  return load_config_text(kText, "run.yaml", row.overrides);
}

TEST(StackRows, EachKeepsWhatTheOnesBeforeItHave) {
  const std::vector<StackRun> rows = stack_rows(load_config_text(kText, "run.yaml"), {.ranks = 4});
  EXPECT_THAT(
      names(rows),
      ElementsAre(
          "baseline",
          "+ lean tape",
          "+ checkpointing",
          "+ bf16",
          "+ micro-batches of 2",
          "+ ZeRO-1 on 4 ranks",
          "+ ZeRO-2 on 4 ranks",
          "+ ZeRO-3 on 4 ranks"));
  for (size_t number = 0; number < rows.size(); ++number) {
    const RunConfig config = config_of(rows[number]);
    EXPECT_EQ(config.activation_checkpointing().tape(), number >= 1 ? "lean" : "full");
    EXPECT_EQ(config.activation_checkpointing().policy(), number >= 2 ? "full" : "none");
    EXPECT_FALSE(config.activation_checkpointing().has_n());
    EXPECT_EQ(config.precision().compute(), number >= 3 ? "bf16" : "fp32");
    EXPECT_EQ(config.parallel().zero(), number >= 5 ? static_cast<int64_t>(number) - 4 : 0);
    EXPECT_EQ(rows[number].ranks, number >= 5 ? 4 : 1);
    const BatchSizes sizes = derive_batch(config, rows[number].ranks);
    EXPECT_EQ(sizes.global, 8);
    EXPECT_EQ(sizes.micro, number >= 4 ? 2 : 8);
  }
}

// A config of a long run: nothing of what concerns only that, or stands against a row, is left.
TEST(StackRows, NeedNothingThatAFewStepsHaveNoUseFor) {
  const std::vector<std::string> long_run = {
      "data.validation.fraction=0.1",
      "training.epochs=3",
      "evaluation.every=100",
      "evaluation.patience=1",
      "evaluation.samples=7",
      "checkpoint.save_every=100",
      "checkpoint.keep_last=3",
      "checkpoint.resume=auto",
      "scheduler={name: cosine, warmup_steps: 100, min_ratio: 0.1}",
      "precision={compute: bf16, master: none, moments: bf16, gradients: bf16}",
      "memory={device_budget: 1GiB}",
      "activation_checkpointing={policy: auto, n: null}",
      "parallel={zero: 3, shard: 2, prefetch: 0}"};
  const auto rows_of = [&](std::vector<std::string> more) {
    more.insert(more.end(), long_run.begin(), long_run.end());
    return stack_rows(load_config_text(kText, "run.yaml", more), {.ranks = 2});
  };
  for (const StackRun& row : rows_of({})) {
    SCOPED_TRACE(row.name);
    std::vector<std::string> overrides = long_run;
    std::erase_if(overrides, [&](const std::string& text) { // as the program does
      const auto same = [&](const std::string& own) {
        return own.starts_with(text.substr(0, text.find('=') + 1));
      };
      return text.starts_with("training.") || std::ranges::any_of(row.overrides, same);
    });
    overrides.insert(overrides.end(), row.overrides.begin(), row.overrides.end());
    overrides.push_back("training.steps=2");
    const RunConfig config = load_config_text(kText, "run.yaml", overrides);
    EXPECT_FALSE(config.data().has_validation() && config.data().validation().has_fraction());
    EXPECT_FALSE(config.evaluation().has_every() || config.evaluation().has_patience());
    EXPECT_FALSE(config.checkpoint().has_save_every() || config.checkpoint().has_keep_last());
    EXPECT_FALSE(config.memory().has_device_budget());
    EXPECT_EQ(config.scheduler().name(), "constant");
    EXPECT_FALSE(config.scheduler().has_warmup_steps());
    EXPECT_EQ(config.precision().master(), "fp32");
    EXPECT_EQ(config.precision().moments(), "fp32");
  }
}

TEST(StackRows, OrderAndChoiceAreTheUsers) {
  const RunConfig config = load_config_text(kText, "run.yaml");
  const std::vector<StackRun> rows = stack_rows(
      config, {.order = {"zero3", "bf16", "lean"}, .only = {"lean", "zero3"}, .ranks = 2});
  EXPECT_THAT(names(rows), ElementsAre("baseline", "+ ZeRO-3 on 2 ranks", "+ lean tape"));
  EXPECT_EQ(rows[2].ranks, 2); // what came before stays
  EXPECT_EQ(derive_batch(config_of(rows[1]), 2).micro, 4); // one micro-batch a rank
  EXPECT_THAT(
      names(stack_rows(config, {.ranks = 1})), // nobody to share states with
      ElementsAre("baseline", "+ lean tape", "+ checkpointing", "+ bf16", "+ micro-batches of 2"));
}

TEST(StackRows, WithoutSmallerMicroBatchesInTheConfigThereIsOneSampleEach) {
  const std::vector<std::string> whole = {"training.micro_batch_size=null"};
  const std::vector<StackRun> rows =
      stack_rows(load_config_text(kText, "run.yaml", whole), {.only = {"accumulation"}});
  EXPECT_THAT(names(rows), ElementsAre("baseline", "+ micro-batches of 1"));
}

TEST(StackRows, RefusesWhatItDoesNotKnow) {
  const RunConfig config = load_config_text(kText, "run.yaml");
  EXPECT_THAT(
      [&] { stack_rows(config, {.only = {"bf61"}}); },
      ThrowsMessage<UserError>(
          HasSubstr("--only: 'bf61' is not a technique (did you mean bf16?)")));
  EXPECT_THAT(
      [&] {
        stack_rows(config, {.order = {"lean", "bf16", "lean"}});
      },
      ThrowsMessage<UserError>(HasSubstr("--order: 'lean' comes twice")));
  EXPECT_THAT(
      [&] {
        stack_rows(config, {.only = {"bf16", "bf16"}});
      },
      ThrowsMessage<UserError>(HasSubstr("--only: 'bf16' comes twice")));
  EXPECT_THAT(
      [&] {
        stack_rows(config, {.order = {"bf16"}, .only = {"lean", "bf16"}});
      },
      ThrowsMessage<UserError>(HasSubstr("--only names lean, which --order leaves out")));
  for (const std::string& name : stack_techniques()) {
    for (const auto& [option, choice] :
         {std::pair<std::string, StackChoice>("--only", {.only = {name}, .ranks = 1}),
          std::pair<std::string, StackChoice>("--order", {.order = {name}, .ranks = 1})}) {
      if (name.starts_with("zero")) {
        EXPECT_THAT(
            [&] { stack_rows(config, choice); },
            ThrowsMessage<UserError>(
                HasSubstr(option + ": " + name + " shares states among ranks, and --ranks is 1")));
      } else {
        EXPECT_EQ(stack_rows(config, choice).size(), 2U) << name;
      }
    }
  }
  EXPECT_THAT(
      [&] { stack_rows(config, {.ranks = 3}); },
      ThrowsMessage<UserError>(HasSubstr("8 samples cannot be shared by 3 ranks")));
}

} // namespace
} // namespace palimpsest
