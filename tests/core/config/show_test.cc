#include <palimpsest/tests/core/config/loading.h>

#include <palimpsest/core/config/show.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

std::string show(
    const std::string& text,
    const std::vector<std::string>& overrides = {},
    int world = 1) {
  Origins origins;
  const RunConfig config = load_config_text(text, "run.yaml", overrides, &origins);
  return show_config(config, origins, world);
}

TEST(Show, NamesWhereEachValueComesFrom) {
  const std::string text = show(minimal(), {"training.seed=9"}, 2);
  EXPECT_THAT(
      text,
      AllOf(
          ContainsRegex("learning_rate: 0.001 +# run.yaml:3\n"),
          ContainsRegex("seed: 9 +# override training.seed=9\n"),
          ContainsRegex("hidden_size: 64 +# preset tiny\n"),
          ContainsRegex("head_dim: 16 +# from hidden_size / num_attention_heads\n"),
          ContainsRegex("eps: 1e-08 +# default\n"),
          ContainsRegex("global_batch_size: 16 +# derived\n"),
          HasSubstr("# batch: 16 samples a step = 8 (micro-batch) x 1 (accumulation) x 2 "
                    "(data-parallel size)")));
  EXPECT_THAT(text, Not(HasSubstr("momentum"))); // means nothing for adamw
}

// None of its keys has a value here.
TEST(Show, AnEmptySectionIsAComment) {
  const std::string text = show(minimal());
  EXPECT_THAT(text, HasSubstr("# memory:\n  # device_budget: no bound on a machine"));
  EXPECT_THAT(text, Not(HasSubstr("{}")));
  EXPECT_THAT(config_text(load_config_text(minimal(), "run.yaml"), 1), Not(HasSubstr("memory")));
  EXPECT_THAT(show(minimal(), {"memory.device_budget=1GiB"}), HasSubstr("\nmemory:\n"));
}

TEST(Show, LoadsBackIntoTheSameConfig) {
  const std::vector<std::vector<std::string>> variants = {
      {},
      {"training.steps=10", "scheduler.name=wsd", "scheduler.warmup_steps=2"},
      {"optimizer.name=sgd", "optimizer.momentum=0.9", "optimizer.norm_type=inf"},
      {"activation_checkpointing={policy: key_layers, recompute: [0, '\"a\": #b', 'null']}"},
      {"optimizer.groups=[{match: 'bias|norm', weight_decay: 0}, {match: head, "
       "learning_rate_multiplier: 0.5}]"},
      {"model={preset: null, path: './a folder/é'}"},
      {"model.rope_scaling={rope_type: yarn, factor: 2, beta_slow: 1}"},
      {"training={global_batch_size: 12, micro_batch_size: auto, output: '2024', threads: auto}"},
      {"data={files: null, sources: [{path: a.txt, weight: 1}, {path: b.txt}]}"},
  };
  for (const auto& overrides : variants) {
    const std::string first = show(minimal(), overrides);
    const std::string message = refusal(first);
    ASSERT_EQ(message, "") << first;
    const RunConfig once = load_config_text(minimal(), "run.yaml", overrides);
    const RunConfig twice = load_config_text(first, "run.yaml");
    EXPECT_EQ(once.optimizer().name(), twice.optimizer().name());
    EXPECT_EQ(once.model().path(), twice.model().path());
    EXPECT_EQ(once.training().output(), twice.training().output());
    // All values, compared as they are shown without their origins.
    const auto values = [](std::string text) {
      std::string kept;
      for (size_t at = 0; at < text.size();) {
        const size_t end = text.find('\n', at);
        const std::string line = text.substr(at, end - at);
        const bool comment = line[line.find_first_not_of(' ')] == '#';
        kept += comment ? "" : line.substr(0, line.rfind("  # ")) + "\n";
        at = end + 1;
      }
      return kept;
    };
    EXPECT_EQ(values(first), values(show(first)));
  }
}

// Of keys that exclude each other one may have a default, which is no reason to lose the other.
TEST(Show, AKeptConfigHasTheKeysThatExcludeDefaults) {
  const auto kept = [](const std::string& override, const std::string& line) {
    const std::string text =
        config_text(load_config_text(minimal(), "run.yaml", {override}), /*world=*/1);
    EXPECT_THAT(text, HasSubstr(line));
    EXPECT_EQ(config_text(load_config_text(text, "kept.yaml"), 1), text);
  };
  kept("lora={adapter: a, dropout: 0.1}", "adapter: a\n");
  kept("lora={rank: 4}", "rank: 4\n");
  kept("precision={compute: fp16, loss_scaling: {fixed: 128}}", "fixed: 128\n");
  kept("scheduler={name: cosine, warmup_steps: 5}", "warmup_steps: 5\n");
}

// Of four ranks two groups of two.
TEST(Show, ShowsTheReplicasThatTheShardsLeave) {
  EXPECT_THAT(
      show(minimal(), {"parallel={zero: 2, shard: 2}"}, 4),
      ContainsRegex("replicate: 2 +# derived\n"));
  EXPECT_THAT(
      show(minimal(), {"parallel={zero: 2, shard: 2, replicate: 2}"}, 4),
      ContainsRegex("replicate: 2 +# override"));
  EXPECT_THAT(
      show(minimal(), {"parallel={zero: 2}"}, 4), ContainsRegex("replicate: 1 +# default\n"));
}

} // namespace
} // namespace palimpsest
