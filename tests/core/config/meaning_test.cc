#include <palimpsest/tests/core/config/loading.h>

#include <palimpsest/core/config/meaning.h>
#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/show.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;

RunConfig load(const std::vector<std::string>& overrides) {
  return load_config_text(minimal(), "run.yaml", overrides);
}

std::vector<std::string> changes(
    const std::vector<std::string>& before,
    const std::vector<std::string>& now,
    int64_t world = 1) {
  return changes_of_meaning(resolve_batch(load(before), 1), resolve_batch(load(now), world));
}

/// Every key with a value must say whether it changes the numbers, itself or, if it does, by its
/// section; a section must not wave its keys through.
void expect_choices(const google::protobuf::Descriptor& section, bool chosen, int& keys) {
  for (int i = 0; i < section.field_count(); ++i) {
    const auto& field = *section.field(i);
    const KeyOptions& options = options_of(field);
    const bool own = options.has_changes_numbers();
    if (is_section(field)) {
      EXPECT_TRUE(!own || options.changes_numbers()) << field.full_name() << ": say it at its keys";
      expect_choices(*field.message_type(), chosen || own, keys);
    } else {
      ++keys;
      EXPECT_TRUE(chosen || own) << field.full_name() << ": choose changes_numbers";
    }
  }
}

TEST(Meaning, EveryKeyHasChosen) {
  int keys = 0;
  expect_choices(*RunConfig::descriptor(), false, keys);
  EXPECT_GT(keys, 100);
}

TEST(Meaning, KeysThatChangeTheNumbers) {
  for (const char* key :
       {"model.path",
        "model.rope_scaling.factor",
        "data.files",
        "data.shuffle",
        "data.validation.fraction",
        "training.seed",
        "training.global_batch_size",
        "optimizer.betas",
        "optimizer.groups",
        "scheduler.name",
        "precision.compute",
        "lora.rank",
        "no.such.key"}) {
    EXPECT_TRUE(changes_numbers(key)) << key;
  }
  for (const char* key :
       {"training.micro_batch_size",
        "training.gradient_accumulation_steps",
        "training.threads",
        "training.output",
        "parallel.zero",
        "parallel.shard",
        "pipeline.stages",
        "activation_checkpointing.policy",
        "offload.optimizer",
        "memory.device_budget",
        "checkpoint.save_every",
        "checkpoint.keep_last",
        "logging.every"}) {
    EXPECT_FALSE(changes_numbers(key)) << key;
  }
}

TEST(Meaning, NamesWhatChangedFromWhatToWhat) {
  EXPECT_THAT(changes({}, {}), IsEmpty());
  EXPECT_THAT(
      changes(
          {},
          {"optimizer.learning_rate=0.5",
           "training.seed=7",
           "data.shuffle=false",
           "precision.compute=bf16"}),
      UnorderedElementsAre(
          "data.shuffle: true -> false",
          "training.seed: 42 -> 7",
          "optimizer.learning_rate: 0.001 -> 0.5",
          "precision.compute: fp32 -> bf16"));
  EXPECT_THAT(
      changes({"optimizer.max_grad_norm=1"}, {}),
      ElementsAre("optimizer.max_grad_norm: 1 -> not set"));
  EXPECT_THAT(
      changes({}, {"optimizer.groups=[{match: bias, weight_decay: 0}]"}),
      ElementsAre("optimizer.groups: not set -> [{match: \"bias\" weight_decay: 0}]"));
  EXPECT_THAT(
      changes({}, {"model.rope_scaling={rope_type: linear, factor: 2}"}),
      ElementsAre("model.rope_scaling: not set -> set"));
}

TEST(Meaning, HowItIsComputedMayChange) {
  EXPECT_THAT(
      changes(
          {},
          {"activation_checkpointing=full",
           "training.output=elsewhere",
           "training.threads=1",
           "logging.quiet=true"}),
      IsEmpty());
}

TEST(Meaning, TheSameGlobalBatchCutDifferently) {
  const std::vector<std::string> before = {"training.global_batch_size=12"};
  EXPECT_THAT(
      changes(before, {"training.micro_batch_size=2", "training.gradient_accumulation_steps=6"}),
      IsEmpty());
  EXPECT_THAT(changes(before, before, 4), IsEmpty());
  // A micro-batch alone makes the batch depend on the world: 3 x 1 x 1 against 3 x 1 x 2.
  EXPECT_THAT(
      changes({"training.micro_batch_size=3"}, {"training.micro_batch_size=3"}, 2),
      ElementsAre("training.global_batch_size: 3 -> 6"));
}

TEST(Meaning, AKeyWithoutEffectMayChange) {
  const RunConfig before = load({"optimizer.name=sgd"});
  RunConfig now = before;
  now.mutable_optimizer()->set_eps(1); // sgd has none
  EXPECT_THAT(changes_of_meaning(before, now), IsEmpty());
  now.mutable_optimizer()->set_momentum(0.5);
  EXPECT_THAT(changes_of_meaning(before, now), ElementsAre("optimizer.momentum: 0 -> 0.5"));
}

TEST(Meaning, ARunMayBeLongerWhereTheRateDoesNotFollow) {
  EXPECT_THAT(changes({"training.steps=5"}, {"training.steps=10"}), IsEmpty());
  EXPECT_THAT(changes({"training.steps=5"}, {"training.epochs=2"}), IsEmpty());
  const auto cosine = [](const char* steps) {
    return std::vector<std::string>{steps, "scheduler=cosine"};
  };
  EXPECT_THAT(
      changes(cosine("training.steps=5"), cosine("training.steps=10")),
      ElementsAre("training.steps: 5 -> 10"));
  EXPECT_THAT(
      changes(
          {"training.steps=5", "scheduler.warmup_ratio=0.5"},
          {"training.steps=10", "scheduler.warmup_ratio=0.5"}),
      ElementsAre("training.steps: 5 -> 10"));
}

TEST(Meaning, TheKeptTextGivesTheSameConfig) {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"training.steps=10", "scheduler.name=wsd", "scheduler.warmup_steps=2"},
      {"optimizer.name=sgd", "optimizer.momentum=0.9"},
      {"optimizer.groups=[{match: 'bias|norm', weight_decay: 0}]"},
      {"model={preset: null, path: './a folder/é'}"},
      {"model.rope_scaling={rope_type: yarn, factor: 2, beta_slow: 1}"},
      {"data={files: null, sources: [{path: a.txt, weight: 1}, {path: b.txt}]}"}};
  for (const auto& overrides : variants) {
    const RunConfig once = load(overrides);
    const std::string text = config_text(once, 1);
    EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("#"))) << text;
    const RunConfig twice = load_config_text(text, "config.yaml");
    EXPECT_THAT(changes_of_meaning(twice, resolve_batch(once, 1)), IsEmpty()) << text;
    EXPECT_EQ(twice.training().output(), once.training().output());
    EXPECT_EQ(config_text(twice, 1), text);
  }
}

} // namespace
} // namespace palimpsest
