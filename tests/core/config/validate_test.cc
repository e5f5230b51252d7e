// Covers: core/config/supported.cc
#include <palimpsest/tests/core/config/loading.h>

#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/supported.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

struct Contradiction {
  std::vector<std::string> overrides; // of the shortest config
  std::vector<std::string> named; // what the refusal says
};

class Contradictions : public ::testing::TestWithParam<Contradiction> {};

TEST_P(Contradictions, AreRefusedNamingBothKeys) {
  const std::string message = refusal(minimal(), GetParam().overrides);
  for (const std::string& name : GetParam().named) {
    EXPECT_THAT(message, HasSubstr(name));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Pairs,
    Contradictions,
    ::testing::Values(
        Contradiction{
            {"training.epochs=1", "training.steps=5"},
            {"training.epochs (override training.epochs=1)",
             "training.steps (override",
             "contradict"}},
        Contradiction{
            {"precision.master=none"},
            {"precision.master (override", "precision.compute is fp32", "belongs to bf16"}},
        Contradiction{
            {"precision={compute: fp16, master: none}"},
            {"precision.master", "precision.compute", "fp16", "belongs to bf16"}},
        Contradiction{
            {"precision={compute: bf16, loss_scaling: {initial: 8}}"},
            {"precision.loss_scaling.initial", "precision.compute", "bf16", "belongs to fp16"}},
        Contradiction{
            {"precision={compute: fp16, loss_scaling: {fixed: 8, hysteresis: 2}}"},
            {"precision.loss_scaling.fixed", "precision.loss_scaling.hysteresis", "contradict"}},
        Contradiction{
            {"precision={compute: fp16, loss_scaling: {initial: 8, minimum: 16}}"},
            {"precision.loss_scaling.initial",
             " 8 is below ",
             "precision.loss_scaling.minimum",
             " 16"}},
        Contradiction{{"model.path=m"}, {"model.path", "model.preset (run.yaml:1)", "contradict"}},
        Contradiction{
            {"model.preset=null", "model.path=m", "model.family=llama"},
            {"model.path", "model.family", "contradict"}},
        Contradiction{
            {"model.family=mlp"},
            {"model.preset", "model.family", "preset's family is llama"}},
        Contradiction{
            {"model.preset=null", "model.path=m", "model.hidden_size=64"},
            {"model.path", "model.hidden_size", "config.json"}},
        Contradiction{
            {"data.sources=[{path: a.txt}]"},
            {"data.files", "data.sources", "contradict"}},
        Contradiction{
            {"scheduler.name=cosine", "scheduler.warmup_ratio=0.1", "scheduler.warmup_steps=5"},
            {"scheduler.warmup_ratio", "scheduler.warmup_steps", "contradict"}},
        Contradiction{
            {"training.steps=4", "scheduler.warmup_steps=5"},
            {"scheduler.warmup_steps", " 5 is more than training.steps", " 4"}},
        Contradiction{
            {"scheduler.name=wsd", "scheduler.warmup_ratio=0.6", "scheduler.decay_ratio=0.5"},
            {"scheduler.warmup_ratio", "scheduler.decay_ratio", "add up to more than 1"}},
        Contradiction{
            {"offload.parameters=host", "parallel.zero=2"},
            {"offload.parameters", "is host, but parallel.zero", "is 2", "needs parallel.zero 3"}},
        Contradiction{
            {"offload.parameters=disk"},
            {"offload.parameters", "needs offload.directory"}},
        Contradiction{{"offload.activations=disk"}, {"offload.activations", "offload.directory"}},
        Contradiction{{"parallel.replicate=2"}, {"parallel.replicate", "parallel.zero is 0"}},
        Contradiction{{"parallel.shard=2"}, {"parallel.shard", "parallel.zero is 0"}},
        Contradiction{
            {"activation_checkpointing=every_n"},
            {"activation_checkpointing.policy", "every_n, which needs activation_checkpointing.n"}},
        Contradiction{
            {"activation_checkpointing=sqrt", "activation_checkpointing.n=2"},
            {"activation_checkpointing.n",
             "activation_checkpointing.policy",
             "belongs to every_n"}},
        Contradiction{
            {"activation_checkpointing.segments=2"},
            {"activation_checkpointing.segments", "is none; it belongs to uniform"}},
        Contradiction{
            {"activation_checkpointing=key_layers"},
            {"activation_checkpointing.recompute or activation_checkpointing.count"}},
        Contradiction{
            {"activation_checkpointing=key_layers",
             "activation_checkpointing.count=1",
             "activation_checkpointing.recompute=[0]"},
            {"activation_checkpointing.recompute", "activation_checkpointing.count", "contradict"}},
        Contradiction{
            {"lora.adapter=a", "lora.rank=4"},
            {"lora.adapter", "lora.rank", "contradict"}},
        Contradiction{
            {"lora.adapter=a", "lora.target_modules=[q_proj]"},
            {"lora.adapter", "lora.target_modules", "contradict"}},
        Contradiction{
            {"training.restart=true", "checkpoint.resume=auto"},
            {"training.restart", "checkpoint.resume", "contradict"}},
        Contradiction{
            {"optimizer.momentum=0.9"},
            {"optimizer.momentum", "optimizer.name is adamw"}},
        Contradiction{
            {"optimizer.name=sgd", "optimizer.betas=[0.8, 0.9]"},
            {"optimizer.betas", "optimizer.name", "is sgd; it belongs to adamw"}},
        Contradiction{
            {"scheduler.min_ratio=0.1"},
            {"scheduler.min_ratio", "scheduler.name is constant"}},
        Contradiction{
            {"checkpoint.keep_last=3"},
            {"checkpoint.keep_last", "checkpoint.save_every"}},
        Contradiction{{"evaluation.every=3"}, {"evaluation.every", "give data.validation"}},
        Contradiction{{"evaluation.samples=3"}, {"evaluation.samples", "give data.validation"}},
        Contradiction{
            {"data.validation={fraction: 0.1}", "evaluation.patience=3"},
            {"evaluation.patience", "evaluation.every is not set"}},
        Contradiction{
            {"data.validation={fraction: 0.1}", "evaluation.keep_best=false"},
            {"evaluation.keep_best", "evaluation.every is not set"}},
        Contradiction{
            {"data.validation={fraction: 0.1}",
             "evaluation.every=3",
             "evaluation.min_improvement=0.1"},
            {"evaluation.min_improvement", "evaluation.patience is not set"}},
        Contradiction{
            {"data.sequence_length=1024"},
            {"data.sequence_length", "1024 is longer than model.max_position_embeddings", "512"}},
        Contradiction{
            {"model.num_key_value_heads=3"},
            {"model.num_attention_heads", "4 is no multiple of model.num_key_value_heads", "3"}},
        Contradiction{
            {"model.hidden_size=66"},
            {"model.hidden_size", "66 is no multiple of model.num_attention_heads", "4"}},
        Contradiction{{"model.hidden_size=12"}, {"the width of a head", "odd"}},
        Contradiction{{"model.input_size=3"}, {"model.family", "model.input_size", "no such key"}},
        Contradiction{
            {"model.sliding_window=64"},
            {"model.family", "model.sliding_window", "family llama has no such key"}},
        Contradiction{
            {"model.preset=null",
             "model={family: gpt2, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, "
             "vocab_size: 9, rope_theta: 500}"},
            {"model.rope_theta", "family gpt2 has no such key"}},
        Contradiction{
            {"model.preset=null",
             "model={family: qwen2, hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, "
             "vocab_size: 9}"},
            {"qwen2, which needs model.intermediate_size"}},
        Contradiction{
            {"model.preset=null", "model.family=bert"},
            {"model.family", "bert", "llama, mistral, qwen2, qwen3, gemma, gpt2"}},
        Contradiction{
            {"model.rope_scaling={rope_type: yarn}"},
            {"is yarn, which needs model.rope_scaling.factor"}},
        Contradiction{
            {"model.rope_scaling={rope_type: linear, factor: 2, beta_fast: 3}"},
            {"model.rope_scaling.beta_fast", "is linear; it belongs to yarn"}},
        Contradiction{
            {"model.rope_scaling={rope_type: llama3, factor: 2, low_freq_factor: 4}"},
            {"low_freq_factor", "4 must be below model.rope_scaling.high_freq_factor 4"}},
        Contradiction{
            {"parallel.zero=hybrid_shard"},
            {"needs parallel.replicate or parallel.shard"}}));

// What decides by a budget chooses its tapes: asking for the default's would not be honoured.
TEST(Validate, ATapeIsAskedForOnlyWhereItIsHeeded) {
  const auto& policies =
      options_of(*RunConfig::ActivationCheckpointing::descriptor()->FindFieldByName("policy"));
  for (const std::string& policy : policies.allowed()) {
    const bool chooses = policy == "auto" || policy == "chen_greedy" || policy == "revolve" ||
        policy == "dynamic_programming";
    std::vector<std::string> overrides = {"activation_checkpointing.policy=" + policy};
    if (policy == "every_n") {
      overrides.emplace_back("activation_checkpointing.n=2");
    } else if (policy == "key_layers") {
      overrides.emplace_back("activation_checkpointing.count=1");
    }
    EXPECT_EQ(refusal(minimal(), overrides), "");
    overrides.emplace_back();
    for (const std::string tape : {"full", "lean"}) {
      overrides.back() = "activation_checkpointing.tape=" + tape;
      const std::string said = refusal(minimal(), overrides);
      if (chooses) {
        EXPECT_THAT(said, HasSubstr("is " + policy + "; it belongs to none, full, every_n"));
      } else {
        EXPECT_EQ(said, "") << policy << ' ' << tape;
      }
    }
  }
}

TEST(Validate, EqualValuesInTwoPlacesPass) {
  EXPECT_EQ(refusal(minimal(), {"model.family=llama"}), ""); // what the preset says
  EXPECT_EQ(refusal(minimal(), {"optimizer.momentum=0"}), ""); // what holds for adamw anyway
  EXPECT_EQ(refusal(minimal(), {"optimizer.name=sgd", "optimizer.eps=1e-8"}), "");
  EXPECT_EQ(refusal(minimal(), {"parallel.replicate=1"}), "");
  EXPECT_EQ(refusal(minimal(), {"offload.directory=/scratch"}), "");
}

TEST(Validate, WhatIsMissingIsListed) {
  EXPECT_THAT(
      refusal("{}"),
      AllOf(
          HasSubstr("run.yaml: 3 settings are wrong"),
          HasSubstr("model is missing; give model.path, model.preset or model.family"),
          HasSubstr("data is missing; give data.files"),
          HasSubstr("optimizer.learning_rate is missing")));
  EXPECT_THAT(
      refusal("model: {family: llama}\ndata: {files: [a.txt]}\noptimizer: {learning_rate: 1}"),
      AllOf(
          HasSubstr("needs model.hidden_size"),
          HasSubstr("needs model.num_hidden_layers"),
          HasSubstr("needs model.num_attention_heads"),
          HasSubstr("needs model.intermediate_size"),
          HasSubstr("needs model.vocab_size")));
  EXPECT_THAT(refusal(minimal(), {"data.files=[corpus.dat]"}), HasSubstr("data.format is missing"));
  EXPECT_EQ(refusal(minimal(), {"data.files=[corpus.dat]", "data.format=tokens"}), "");
}

TEST(Validate, ModelsOfEachKindLoad) {
  const std::string rest = "\ndata: {files: [a.safetensors]}\noptimizer: {learning_rate: 1e-3}";
  EXPECT_EQ(refusal("model: {path: ./llama, dropout: 0.1}" + rest), "");
  EXPECT_EQ(
      refusal(
          "model: {family: mlp, input_size: 8, hidden_size: 16, output_size: 4, "
          "num_hidden_layers: 2, hidden_act: relu}" +
          rest),
      "");
  EXPECT_THAT(
      refusal(
          "model: {family: mlp, input_size: 8, hidden_size: 16, output_size: 4, "
          "num_hidden_layers: 2, vocab_size: 3}" +
          rest),
      HasSubstr("family mlp has no such key"));
  EXPECT_EQ(
      refusal(
          "model: {family: llama, hidden_size: 16, num_hidden_layers: 2, num_attention_heads: 2, "
          "intermediate_size: 32, vocab_size: 64, rope_scaling: {rope_type: llama3, factor: 8, "
          "original_max_position_embeddings: 512}}" +
          rest),
      "");
}

TEST(Validate, AFamilysOwnDefaultsAreDerived) {
  const auto load = [](const std::string& family) {
    return load_config_text(
        "model: {family: " + family +
            ", hidden_size: 8, num_hidden_layers: 1, num_attention_heads: 2, vocab_size: 9}\n"
            "data: {files: [a.txt]}\n"
            "optimizer: {learning_rate: 1}\n",
        "run.yaml",
        family == "gpt2" ? std::vector<std::string>()
                         : std::vector<std::string>{"model.intermediate_size=24"});
  };
  const auto gpt2 = load("gpt2");
  EXPECT_TRUE(gpt2.model().tie_word_embeddings());
  EXPECT_EQ(gpt2.model().hidden_act(), "gelu_pytorch_tanh");
  EXPECT_EQ(gpt2.model().intermediate_size(), 32);
  EXPECT_FALSE(gpt2.model().has_head_dim());
  const auto gemma = load("gemma");
  EXPECT_TRUE(gemma.model().tie_word_embeddings());
  EXPECT_EQ(gemma.model().head_dim(), 4);
  EXPECT_FALSE(load("qwen3").model().tie_word_embeddings());
}

TEST(Validate, APatternOfAdaptersMustChangeSomething) {
  EXPECT_THAT(
      refusal(minimal(), {"lora={patterns: [{match: q_proj}]}"}),
      AllOf(HasSubstr("lora.patterns"), HasSubstr("q_proj changes nothing; give it a rank")));
  EXPECT_EQ(refusal(minimal(), {"lora={patterns: [{match: q_proj, alpha: 4}]}"}), "");
}

// Each is refused by name with what works instead, in a config that is otherwise right.
TEST(Supported, WhatDoesNotExistYetIsRefusedByName) {
  const std::vector<std::vector<std::string>> asked = {
      {"memory.host_budget=8GiB"},
      {"pipeline.stages=2"},
      {"pipeline.schedule=gpipe"},
      {"offload.optimizer=host"},
      {"offload.gradients=auto"},
      {"offload.activations=disk", "offload.directory=/scratch"},
  };
  for (const auto& overrides : asked) {
    const std::string key = overrides[0].substr(0, overrides[0].find('='));
    EXPECT_THAT(
        refusal(minimal(), overrides),
        AllOf(
            ::testing::StartsWith(key + " (override " + overrides[0] + ") is "),
            HasSubstr("this version cannot do this: "),
            Not(HasSubstr("settings are wrong"))));
  }
}

TEST(Supported, EveryLimitNamesAKeyAndLetsTheDefaultPass) {
  EXPECT_FALSE(limits().empty());
  const RunConfig config = load_config_text(minimal(), "run.yaml");
  Problems problems;
  check_supported(config, {}, problems); // an unknown key breaks an invariant
  EXPECT_THAT(problems, ::testing::IsEmpty());
}

} // namespace
} // namespace palimpsest
