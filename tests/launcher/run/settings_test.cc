// Covers: launcher/compose/settings.cc
// Every value differs from its default, so that one that is not passed on is seen.

#include <palimpsest/launcher/compose/settings.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/loader.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kConfig = R"(
model: {family: llama, vocab_size: 67, hidden_size: 24, num_hidden_layers: 1, num_attention_heads: 4,
        intermediate_size: 56, max_position_embeddings: 300}
data: {files: [a.txt], shuffle: false, drop_last: true}
training: {epochs: 3, seed: 7, global_batch_size: 12, micro_batch_size: 2}
optimizer: {name: adamw, learning_rate: 0.5, betas: [0.7, 0.8], eps: 1e-4, max_grad_norm: 2,
            weight_decay: 0.3, groups: [{match: norm, weight_decay: 0, learning_rate_multiplier: 4}]}
scheduler: {name: wsd, warmup_steps: 3, min_ratio: 0.2, decay_ratio: 0.4, decay: linear}
parallel: {zero: 2, replicate: 2, shard: 3}
)";

RunConfig config_with(const std::vector<std::string>& overrides = {}) {
  return load_config_text(kConfig, "test.yaml", overrides);
}

TEST(Settings, OfTheData) {
  const RunConfig config = config_with();
  const DataSettings settings = data_settings(config, Model(config));
  ASSERT_EQ(settings.files.size(), 1U);
  EXPECT_EQ(settings.files[0].path, "a.txt");
  EXPECT_EQ(settings.files[0].format, "text");
  EXPECT_EQ(settings.sequence_length, 300); // what the model allows, below the usual 512
  EXPECT_EQ(settings.vocabulary_size, 67);
  EXPECT_EQ(settings.input_size, 0);
}

TEST(Settings, ASourceWithoutAFormatHasTheDatas) {
  const RunConfig config = config_with(
      {"data.files=null", "data.format=text", "data.sources=[{path: a}, {path: b, format: text}]"});
  const DataSettings settings = data_settings(config, Model(config));
  ASSERT_EQ(settings.files.size(), 2U);
  EXPECT_EQ(settings.files[0].format, "text");
  EXPECT_EQ(settings.files[1].format, "text");
}

TEST(Settings, OfConversations) {
  const RunConfig config = load_config_text(
      kConfig,
      "test.yaml",
      {"data.files=null",
       "data.sources=[{path: a, format: messages, weight: 2.5}, {path: b.txt}]",
       "data.format=text",
       "data.columns={messages: turns, role: who}",
       "data.tokenizer=words",
       "data.chat_template=gemma",
       "data.loss_on=last"});
  const DataSettings settings = data_settings(config, Model(config));
  ASSERT_EQ(settings.files.size(), 2U);
  EXPECT_EQ(settings.files[0].format, "messages");
  EXPECT_EQ(settings.files[0].weight, 2.5);
  EXPECT_EQ(settings.files[1].format, "text");
  EXPECT_EQ(settings.files[1].weight, 1);
  EXPECT_EQ(settings.columns, (Columns{{"messages", "turns"}, {"role", "who"}}));
  EXPECT_EQ(settings.tokenizer, "words");
  EXPECT_TRUE(settings.tokenizer_named);
  EXPECT_EQ(settings.chat_template, "gemma");
  EXPECT_EQ(settings.loss_on, LossOn::kLast);
  EXPECT_EQ(settings.seed, 7U);
  EXPECT_FALSE(settings.packing);
  EXPECT_FALSE(data_settings(config_with(), Model(config_with())).loss_on.has_value());
}

TEST(Settings, OfAChainWithoutTokens) {
  const RunConfig config = load_config_text(
      "model: {family: mlp, input_size: 5, hidden_size: 4, num_hidden_layers: 1, output_size: 3}\n"
      "data: {files: [a.safetensors]}\noptimizer: {learning_rate: 0.1}\n",
      "test.yaml");
  const DataSettings settings = data_settings(config, Model(config));
  EXPECT_EQ(settings.vocabulary_size, 0);
  EXPECT_EQ(settings.input_size, 5);
  EXPECT_EQ(settings.output_size, 3);
  EXPECT_FALSE(settings.sequence_length.has_value());
}

// Of six ranks as two replicas of three shards, rank 4 holds the second shard's second copy; copies
// of a shard read next to each other, so it is the fourth to read.
TEST(Settings, OfTheBatchesAndTheMesh) {
  const RunConfig config = config_with();
  const MeshRequest request = mesh_request(config);
  EXPECT_EQ(request.zero, 2);
  EXPECT_EQ(request.stages, 1);
  EXPECT_EQ(request.replicate, 2);
  EXPECT_EQ(request.shard, 3);
  const BatchSettings settings =
      batch_settings(config, derive_batch(config, 6), resolve_mesh(6, request), 4);
  EXPECT_EQ(settings.global_batch_size, 12);
  EXPECT_EQ(settings.micro_batch_size, 2);
  EXPECT_EQ(settings.epochs, 3);
  EXPECT_FALSE(settings.steps.has_value());
  EXPECT_EQ(settings.seed, 7U);
  EXPECT_FALSE(settings.shuffle);
  EXPECT_TRUE(settings.drop_last);
  EXPECT_EQ(settings.rank, 3);
  EXPECT_EQ(settings.ranks, 6);
}

// Divisors that grow by half at least; nothing to choose where the config says it, or there is no
// budget.
TEST(Settings, MicroBatchesToChooseFrom) {
  const auto candidates = [](const std::vector<std::string>& overrides) {
    const RunConfig config = config_with(overrides);
    return micro_batch_candidates(config, derive_batch(config, 1));
  };
  const std::string automatic = "activation_checkpointing.policy=auto";
  const std::string free = "training.micro_batch_size=null";
  EXPECT_THAT(
      candidates({automatic, free, "training.global_batch_size=24"}),
      ElementsAre(1, 2, 3, 6, 12, 24));
  EXPECT_THAT(candidates({automatic, free, "training.global_batch_size=1"}), ElementsAre(1));
  EXPECT_THAT(
      candidates({automatic, "training.micro_batch_size=2", "training.global_batch_size=24"}),
      ElementsAre(2));
  EXPECT_THAT(candidates({free, "training.global_batch_size=24"}), ElementsAre(24));
  EXPECT_THAT(
      candidates({free, "training.global_batch_size=45", "memory.device_budget=1GiB"}),
      ElementsAre(1, 3, 5, 9, 15, 45));
}

// All stages where the config leaves it open; of stage 3 three ways of gathering.
TEST(Settings, WaysOfSharingStatesToChooseFrom) {
  const auto candidates = [](int ranks, const char* policy, const std::string& given) {
    const RunConfig config = config_with(
        {std::string("activation_checkpointing.policy=") + policy,
         "parallel.replicate=null",
         "parallel.shard=null",
         "parallel.zero=" + given});
    std::vector<std::string> texts;
    for (const auto& one : parallel_candidates(config, ranks)) {
      texts.push_back(fmt::format(
          "{}{}{}",
          one.zero(),
          one.reshard_after_forward() ? "" : " kept",
          one.has_prefetch() ? fmt::format(" {}", one.prefetch()) : ""));
    }
    return texts;
  };
  EXPECT_THAT(candidates(2, "auto", "null"), ElementsAre("0", "1", "2", "3 kept", "3", "3 0"));
  EXPECT_THAT(candidates(1, "auto", "null"), ElementsAre("0"));
  EXPECT_THAT(candidates(2, "full", "null"), ElementsAre("0"));
  EXPECT_THAT(candidates(4, "auto", "2"), ElementsAre("2"));
  EXPECT_THAT(candidates(4, "auto", "3"), ElementsAre("3 kept", "3", "3 0"));
}

TEST(Settings, OfTheOptimizerAndItsGroups) {
  const RunConfig config = config_with();
  const OptimizerSettings settings = optimizer_settings(config.optimizer());
  EXPECT_EQ(settings.name, "adamw");
  EXPECT_EQ(settings.beta1, 0.7);
  EXPECT_EQ(settings.beta2, 0.8);
  EXPECT_EQ(settings.eps, 1e-4);
  const RunConfig sgd = load_config_text(
      "model: {preset: tiny}\ndata: {files: [a.txt]}\n"
      "optimizer: {name: sgd, learning_rate: 1, momentum: 0.6}\n",
      "test.yaml");
  EXPECT_EQ(optimizer_settings(sgd.optimizer()).name, "sgd");
  EXPECT_EQ(optimizer_settings(sgd.optimizer()).momentum, 0.6);
  const std::vector<GroupRule> rules = group_rules(config.optimizer());
  ASSERT_EQ(rules.size(), 1U);
  EXPECT_EQ(rules[0].match, "norm");
  EXPECT_EQ(rules[0].learning_rate_multiplier, 4);
  EXPECT_EQ(rules[0].weight_decay, 0);
  const Model model(config);
  int64_t grouped = 0; // elements with the factor of 4
  const auto all = parameter_groups(config.optimizer(), model.chain());
  ASSERT_EQ(all.size(), model.chain().units.size());
  for (const std::vector<GroupRange>& ranges : all) {
    for (const GroupRange& range : ranges) {
      EXPECT_EQ(range.weight_decay, range.learning_rate_factor == 4 ? 0 : 0.3);
      grouped += range.learning_rate_factor == 4 ? range.end - range.begin : 0;
    }
  }
  EXPECT_EQ(grouped, 3 * 24); // the layer's two norms and the last one
}

// wsd over ten steps: up from the floor in 3, down to it in the last 4.
TEST(Settings, OfTheTrainer) {
  const Trainer::Settings settings = trainer_settings(config_with(), 10);
  EXPECT_EQ(settings.seed, 7U);
  EXPECT_DOUBLE_EQ(settings.learning_rate(0), 0.5 * 0.2);
  EXPECT_DOUBLE_EQ(settings.learning_rate(3), 0.5);
  EXPECT_DOUBLE_EQ(settings.learning_rate(8), 0.5 * (0.2 + 0.8 / 2)); // half way down, straight
  EXPECT_DOUBLE_EQ(settings.learning_rate(10), 0.5 * 0.2);
  ASSERT_TRUE(settings.clip);
  EXPECT_NEAR(settings.clip(4.0), 0.5, 1e-6);
  EXPECT_FALSE(trainer_settings(config_with({"optimizer.max_grad_norm=null"}), 10).clip);
  EXPECT_THAT(
      [] { trainer_settings(config_with(), 4); },
      ThrowsMessage<UserError>(HasSubstr("scheduler: a warm-up of 3 steps")));
}

} // namespace
} // namespace palimpsest
