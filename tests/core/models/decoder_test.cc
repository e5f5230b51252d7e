// Covers: embedding_block.cc, head_block.cc, norm.cc, param_ref.cc
#include <palimpsest/tests/core/models/chain_driver.h>
#include <palimpsest/tests/support/models/golden_models.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/head_block.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace palimpsest {
namespace {

/// The largest |difference| / largest |reference|, tensor by tensor.
constexpr double kTolerance = 1e-5;

DecoderConfig small_config() {
  DecoderConfig config;
  config.vocab_size = 96;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.qkv_bias = true;
  config.output_bias = true;
  config.mlp_bias = true;
  config.initializer_range = 0.2;
  return complete_decoder_config(config, "test");
}

ChainDriver make_driver(const DecoderConfig& config, const DecoderOptions& options = {}) {
  ChainDriver driver(build_decoder(config, options));
  initialise_decoder(driver.chain(), config, 11, driver.source());
  return driver;
}

MicroBatch small_batch(const DecoderConfig& config, int64_t rows = 4, int64_t length = 9) {
  const at::Tensor ids =
      at::randint(config.vocab_size, {rows, length}, at::TensorOptions().dtype(at::kLong));
  at::Tensor labels = ids.clone();
  labels.narrow(1, 0, 3).fill_(kIgnoredLabel);
  return token_batch(ids, labels, 5);
}

class Golden : public testing::TestWithParam<const char*> {
 protected:
  Golden()
      : folder_(model_folder(GetParam())), config_(without_dropout()),
        driver_(build_decoder(config_)),
        batch_(token_batch(golden("input_ids"), golden("labels"))) {
    settle_folder(folder_, config_);
    load_weights(folder_, driver_.chain(), driver_.source());
  }
  DecoderConfig without_dropout() const {
    DecoderConfig config = parse_decoder_config(folder_.config_text(), folder_.config_path());
    config.attention_dropout = 0; // the answers are those of evaluation
    return config;
  }
  at::Tensor golden(const std::string& name) const {
    return read_tensor(model_folder(GetParam()) + "/golden.safetensors", name);
  }
  at::Tensor logits(const at::Tensor& hidden) {
    return dynamic_cast<const HeadBlock&>(*driver_.chain().terminal).logits(hidden);
  }
  void expect_golden_gradients() {
    for (const std::string& name : driver_.parameter_names()) {
      EXPECT_LE(relative_difference(driver_.gradient(name), golden("grad." + name)), kTolerance)
          << name;
    }
  }

  HfFolder folder_;
  DecoderConfig config_;
  ChainDriver driver_;
  MicroBatch batch_;
};

TEST_P(Golden, LogitsLossAndEveryGradient) {
  const double loss = golden("loss").item<double>();
  for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
    const StepResult step = driver_.run({batch_}, {.tape = tape});
    EXPECT_NEAR(step.loss_sum / static_cast<double>(batch_.target_count), loss, kTolerance * loss);
    EXPECT_LE(relative_difference(logits(step.terminal_inputs[0]), golden("logits")), kTolerance);
    expect_golden_gradients();
  }
}

TEST_P(Golden, TwoUnequalMicroBatchesGiveTheSame) {
  const MicroBatch first = rows_of(batch_, 0, 1);
  const MicroBatch second = rows_of(batch_, 1, 1);
  ASSERT_NE(first.target_count, second.target_count);
  const StepResult step = driver_.run({first, second});
  const double loss = golden("loss").item<double>();
  EXPECT_NEAR(step.loss_sum / static_cast<double>(batch_.target_count), loss, kTolerance * loss);
  expect_golden_gradients();
}

TEST_P(Golden, EvaluationGivesTheSameLossAndLeavesGradientsAlone) {
  const StepResult step = driver_.run({batch_});
  const Tensors before = driver_.gradients();
  EXPECT_EQ(driver_.evaluate({batch_}).loss_sum, step.loss_sum);
  EXPECT_TRUE(bitwise_equal(driver_.gradients(), before));
}

/// Whether a parameter's name holds none of these words.
TrainableFilter all_but(std::vector<std::string> words) {
  return [words = std::move(words)](const std::string& name) {
    return std::ranges::none_of(
        words, [&](const std::string& word) { return name.find(word) != std::string::npos; });
  };
}

// The references' weights are products of their own; here those that are trained alike are one.
TEST_P(Golden, PartsOfAProductMayBeFrozen) {
  for (const std::vector<std::string>& frozen : std::vector<std::vector<std::string>>{
           {"k_proj"},
           {"q_proj", "up_proj"},
           {"v_proj.weight", "gate_proj"},
           {"k_proj.bias", "norm", "embed"}}) {
    ChainDriver driver(build_decoder(config_, {.trainable = all_but(frozen)}));
    load_weights(folder_, driver.chain(), driver.source());
    Tensors gradients;
    for (const DriverOptions& options : std::vector<DriverOptions>{
             {},
             {.tape = TapeMode::kLean},
             {.recompute = true, .regather = true},
             {.split = true, .stash = true}}) {
      const StepResult step = driver.run({batch_}, options);
      const double loss = golden("loss").item<double>();
      EXPECT_NEAR(
          step.loss_sum / static_cast<double>(batch_.target_count), loss, kTolerance * loss);
      Tensors found;
      for (const auto& unit : driver.chain().units) {
        for (const Parameter& parameter : unit->parameters()) {
          ASSERT_EQ(unit->trainable(), all_but(frozen)(parameter.name)) << parameter.name;
          if (unit->trainable()) {
            found.push_back(driver.gradient(parameter.name).clone());
            EXPECT_LE(
                relative_difference(found.back(), golden("grad." + parameter.name)), kTolerance)
                << parameter.name;
          }
        }
      }
      EXPECT_TRUE(gradients.empty() || bitwise_equal(found, gradients));
      gradients = std::move(found);
    }
  }
}

TEST(Products, AreRunsOfWhatIsTrainedAlike) {
  const AttentionTensors of = attention_tensors(small_config(), 1);
  const auto cut = [&](std::vector<std::string> frozen) {
    std::vector<size_t> sizes;
    for (const ProductTensors& product :
         products_of(of.qkv, of.qkv_bias, all_but(std::move(frozen)))) {
      EXPECT_EQ(product.biases.size(), product.weights.size());
      sizes.push_back(product.weights.size());
    }
    return sizes;
  };
  EXPECT_EQ(cut({}), (std::vector<size_t>{3}));
  EXPECT_EQ(cut({"_proj"}), (std::vector<size_t>{3}));
  EXPECT_EQ(cut({"q_proj"}), (std::vector<size_t>{1, 2}));
  EXPECT_EQ(cut({"k_proj"}), (std::vector<size_t>{1, 1, 1}));
  EXPECT_EQ(cut({"v_proj.bias"}), (std::vector<size_t>{2, 1}));
  EXPECT_EQ(cut({"q_proj.weight", "v_proj.bias"}), (std::vector<size_t>{1, 1, 1}));
  EXPECT_EQ(products_of(of.qkv, {}, all_but({})).size(), 1U);
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(kGoldenModels), golden_model_name);

TEST(Decoder, PositionsBeyondTheOriginalContext) {
  const HfFolder folder(model_folder("llama3-rope"));
  const DecoderConfig config = parse_decoder_config(folder.config_text(), folder.config_path());
  ChainDriver driver(build_decoder(config));
  load_weights(folder, driver.chain(), driver.source());
  const std::string file = model_folder("llama3-rope") + "/golden.safetensors";
  const at::Tensor ids = read_tensor(file, "long_input_ids");
  const StepResult result = driver.evaluate({token_batch(ids, ids)});
  const at::Tensor logits =
      dynamic_cast<const HeadBlock&>(*driver.chain().terminal).logits(result.terminal_inputs[0]);
  EXPECT_LE(relative_difference(logits, read_tensor(file, "long_logits")), kTolerance);
}

DecoderConfig family_config(const char* family) {
  DecoderConfig config = small_config();
  config.family = find_decoder_family(family);
  config.output_bias = config.family->output_bias != Presence::kNever;
  config.mlp_bias = config.family->mlp_bias != Presence::kNever;
  config.hidden_act = config.family->hidden_act;
  config.tie_word_embeddings = config.family->tie_word_embeddings;
  config.num_key_value_heads = config.family->rotary ? 2 : 4;
  if (config.family->windows != WindowRule::kNone) {
    config.windows = {4, 0}; // fewer than the positions
  }
  return complete_decoder_config(config, "test");
}

/// Everything that must not change a bit, in fp32 and bf16, with and without dropout.
struct Bits {
  const char* name;
  const char* family;
  at::ScalarType compute;
  double dropout;
};
class SameBits : public testing::TestWithParam<Bits> {
 protected:
  SameBits()
      : config_(family_config(GetParam().family)), driver_(build()), batch_(small_batch(config_)) {
    plain_loss_ = driver_.run({batch_}).loss_sum;
    plain_ = driver_.gradients();
  }
  ChainDriver build() {
    config_.attention_dropout = GetParam().dropout;
    return make_driver(
        config_,
        {.compute = GetParam().compute,
         .residual_dropout = GetParam().dropout,
         .embedding_dropout = GetParam().dropout});
  }
  void expect_same(const DriverOptions& options) {
    EXPECT_EQ(driver_.run({batch_}, options).loss_sum, plain_loss_);
    EXPECT_TRUE(bitwise_equal(driver_.gradients(), plain_));
  }
  DecoderConfig config_;
  ChainDriver driver_;
  MicroBatch batch_;
  double plain_loss_ = 0;
  Tensors plain_;
};

TEST_P(SameBits, LeanTapes) {
  expect_same({.tape = TapeMode::kLean});
}
TEST_P(SameBits, RecomputeThatYieldsNothing) {
  expect_same({.recompute = true});
  expect_same({.tape = TapeMode::kLean, .recompute = true});
}
TEST_P(SameBits, WeightGradientsLater) {
  expect_same({.split = true});
  expect_same({.tape = TapeMode::kLean, .split = true});
}
TEST_P(SameBits, StashedTapes) {
  expect_same({.stash = true});
  expect_same({.tape = TapeMode::kLean, .split = true, .stash = true});
}
TEST_P(SameBits, ParametersReleasedAndGatheredBeforeTheBackward) {
  expect_same({.regather = true});
  expect_same({.tape = TapeMode::kLean, .regather = true});
}
TEST_P(SameBits, AnotherStepIsAnotherMask) {
  const double other = driver_.run({batch_}, {.step = 4}).loss_sum;
  EXPECT_EQ(other != plain_loss_, GetParam().dropout > 0);
}

INSTANTIATE_TEST_SUITE_P(
    Decoder,
    SameBits,
    testing::Values(
        Bits{"fp32", "llama", at::kFloat, 0},
        Bits{"fp32_dropout", "llama", at::kFloat, 0.25},
        Bits{"bf16_dropout", "llama", at::kBFloat16, 0.25},
        Bits{"mistral", "mistral", at::kFloat, 0},
        Bits{"qwen2", "qwen2", at::kBFloat16, 0.25},
        Bits{"qwen3", "qwen3", at::kFloat, 0},
        Bits{"qwen3_bf16_dropout", "qwen3", at::kBFloat16, 0.25},
        Bits{"gemma", "gemma", at::kFloat, 0},
        Bits{"gemma_bf16_dropout", "gemma", at::kBFloat16, 0.25},
        Bits{"gpt2", "gpt2", at::kFloat, 0},
        Bits{"gpt2_bf16_dropout", "gpt2", at::kBFloat16, 0.25}),
    [](const auto& test) { return test.param.name; });

// Positions are turned relative to each other, so what a query sees through a window is what it sees
// at the end of a sequence that holds nothing else.
TEST(Decoder, AQuerySeesItsWindowAlone) {
  DecoderConfig config = small_config();
  config.family = find_decoder_family("mistral");
  config.qkv_bias = config.output_bias = config.mlp_bias = false;
  config.num_hidden_layers = 1;
  config.windows = {4};
  ChainDriver windowed = make_driver(config);
  config.windows = {};
  ChainDriver plain = make_driver(config);
  const MicroBatch batch = small_batch(config, 2, 12);
  const at::Tensor hidden = windowed.evaluate({batch}).terminal_inputs[0];
  for (int64_t t = 0; t < 12; ++t) {
    const int64_t first = std::max<int64_t>(0, t - 3);
    MicroBatch alone = batch;
    alone.inputs = batch.inputs.narrow(1, first, t + 1 - first).contiguous();
    alone.labels = batch.labels.narrow(1, first, t + 1 - first).contiguous();
    const at::Tensor expected = plain.evaluate({alone}).terminal_inputs[0].select(1, t - first);
    EXPECT_LE(relative_difference(hidden.select(1, t), expected), kTolerance) << t;
  }
}

TEST(Decoder, DropoutMasksDependOnNoMicroBatchSize) {
  DecoderConfig config = small_config();
  config.attention_dropout = 0.3;
  ChainDriver driver = make_driver(config, {.residual_dropout = 0.3});
  const MicroBatch batch = small_batch(config);
  const StepResult whole = driver.run({batch});
  const Tensors gradients = driver.gradients();
  const StepResult parts = driver.run({rows_of(batch, 0, 1), rows_of(batch, 1, 3)});
  EXPECT_NEAR(parts.loss_sum, whole.loss_sum, 1e-6 * whole.loss_sum);
  for (size_t unit = 0; unit < gradients.size(); ++unit) {
    EXPECT_LE(relative_difference(driver.gradients()[unit], gradients[unit]), kTolerance);
  }
}

TEST(Decoder, DropoutIsOffInEvaluation) {
  const DecoderConfig config = small_config();
  ChainDriver plain = make_driver(config);
  ChainDriver dropped = make_driver(config, {.residual_dropout = 0.5});
  const MicroBatch batch = small_batch(config);
  EXPECT_EQ(plain.evaluate({batch}).loss_sum, dropped.evaluate({batch}).loss_sum);
  EXPECT_NE(plain.run({batch}).loss_sum, dropped.run({batch}).loss_sum);
}

TEST(Decoder, WeightGradientsUnderBf16AreFp32) {
  const DecoderConfig config = small_config();
  ChainDriver driver = make_driver(config, {.compute = at::kBFloat16});
  driver.run({small_batch(config)});
  for (const char* name :
       {"model.layers.0.self_attn.q_proj.weight",
        "model.layers.1.mlp.down_proj.weight",
        "lm_head.weight"}) {
    const at::Tensor gradient = driver.gradient(name);
    EXPECT_EQ(gradient.scalar_type(), at::kFloat);
    EXPECT_FALSE(gradient.to(at::kBFloat16).to(at::kFloat).equal(gradient)) << name;
  }
}

TEST(Decoder, AMicroBatchWithoutTargetsAddsNothing) {
  const DecoderConfig config = small_config();
  ChainDriver driver = make_driver(config);
  const MicroBatch batch = small_batch(config);
  MicroBatch empty = batch;
  empty.labels = at::full_like(batch.labels, kIgnoredLabel);
  empty.target_count = 0;
  const double loss = driver.run({batch}).loss_sum;
  const Tensors gradients = driver.gradients();
  EXPECT_EQ(driver.run({batch, empty}).loss_sum, loss);
  EXPECT_TRUE(bitwise_equal(driver.gradients(), gradients));
}

TEST(Decoder, HeadChunksOfAnySizeGiveTheSame) {
  const DecoderConfig config = small_config();
  const MicroBatch batch = small_batch(config, 16, 30); // 416 targets: four chunks of 128
  ChainDriver whole = make_driver(config);
  ChainDriver chunked = make_driver(config, {.head_chunk_bytes = 1});
  const double loss = whole.run({batch}).loss_sum;
  EXPECT_NEAR(chunked.run({batch}).loss_sum, loss, 1e-6 * loss);
  for (size_t unit = 0; unit < whole.gradients().size(); ++unit) {
    EXPECT_LE(relative_difference(chunked.gradients()[unit], whole.gradients()[unit]), kTolerance);
  }
}

TEST(Decoder, FrozenParametersGetNoGradientAndChangeNoOther) {
  const DecoderConfig config = small_config();
  const MicroBatch batch = small_batch(config);
  ChainDriver whole = make_driver(config);
  const auto trained = [](const std::string& name) {
    return name.ends_with("norm.weight") || name.ends_with("q_proj.bias") ||
        name.ends_with("k_proj.bias") || name.ends_with("v_proj.bias") ||
        name.ends_with("down_proj.weight");
  };
  ChainDriver partly = make_driver(config, {.trainable = trained});
  whole.run({batch});
  for (const bool split : {false, true}) {
    partly.run({batch}, {.tape = TapeMode::kLean, .split = split});
    for (const std::string& name : whole.parameter_names()) {
      if (trained(name)) {
        EXPECT_TRUE(
            partly.gradient(name).equal(whole.gradient(name)) ||
            relative_difference(partly.gradient(name), whole.gradient(name)) < 1e-6)
            << name;
      } else {
        EXPECT_THROW(partly.gradient(name), InternalError) << name;
      }
    }
  }
}

TEST(ParamRef, AFilterThatSplitsOneViewIsRefused) {
  Chain chain;
  try {
    add_units(
        chain,
        "block",
        {{{.name = "first", .shape = {2, 3}}, {.name = "second", .shape = {1, 3}}}},
        at::kFloat,
        [](const std::string& name) { return name == "first"; });
    FAIL();
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("first and second are"), std::string::npos);
  }
}

TEST(Decoder, BlocksLayersAndUnits) {
  const DecoderConfig config = small_config();
  const Chain chain = build_decoder(config);
  ASSERT_EQ(chain.blocks.size(), 5U);
  ASSERT_EQ(chain.layers.size(), 2U);
  EXPECT_EQ(chain.layers[1].name, "model.layers.1");
  EXPECT_EQ(chain.layers[1].blocks, (BlockRange{3, 5}));
  EXPECT_EQ(chain.units.size(), 6U); // one a block, the head's too
  EXPECT_EQ(chain.parameter_count(), parameter_count(config));

  DecoderConfig tied = config;
  tied.tie_word_embeddings = true;
  const Chain shared = build_decoder(tied);
  EXPECT_EQ(shared.units.size(), 6U); // embedding, four blocks, the final norm
  EXPECT_EQ(shared.parameter_count(), parameter_count(tied));
  EXPECT_EQ(shared.terminal_units, (std::vector<int>{5, 0}));
}

TEST(Decoder, InitialisationFollowsNamesAndNothingElse) {
  const DecoderConfig config = small_config();
  ChainDriver driver = make_driver(config);
  const at::Tensor weight = driver.parameter("model.layers.1.mlp.up_proj.weight");
  const double count = static_cast<double>(weight.numel());
  EXPECT_NEAR(weight.mean().item<double>(), 0, 5 * 0.2 / std::sqrt(count));
  EXPECT_NEAR(weight.std().item<double>(), 0.2, 5 * 0.2 / std::sqrt(2 * count));
  EXPECT_TRUE(driver.parameter("model.norm.weight").eq(1).all().item<bool>());
  ChainDriver gemma = make_driver(family_config("gemma")); // its gain is 1 + the weight
  EXPECT_TRUE(gemma.parameter("model.norm.weight").eq(0).all().item<bool>());
  EXPECT_TRUE(driver.parameter("model.layers.0.mlp.up_proj.bias").eq(0).all().item<bool>());
  EXPECT_FALSE(weight.equal(driver.parameter("model.layers.0.mlp.up_proj.weight")));

  // GPT-2 begins what a block adds smaller by the root of the additions, two a layer.
  ChainDriver gpt2 = make_driver(family_config("gpt2"));
  const at::Tensor added = gpt2.parameter("transformer.h.0.mlp.c_proj.weight");
  EXPECT_EQ(added.sizes(), at::IntArrayRef({48, 32})); // [in, out]
  EXPECT_NEAR(added.std().item<double>(), 0.1, 5 * 0.1 / std::sqrt(2.0 * 48 * 32));
  EXPECT_NEAR(gpt2.parameter("transformer.h.0.mlp.c_fc.weight").std().item<double>(), 0.2, 0.02);

  // The same values in another unit, at another place, and in a shard of it.
  DecoderConfig shorter = config;
  shorter.qkv_bias = false;
  shorter.output_bias = false;
  ChainDriver other = make_driver(shorter, {.trainable = [](const std::string& name) {
                                    return name.ends_with("norm.weight");
                                  }});
  EXPECT_TRUE(weight.equal(other.parameter("model.layers.1.mlp.up_proj.weight")));
  const UnitSource whole = driver.source();
  const at::Tensor flat = whole(4).values;
  at::Tensor shard = at::zeros({1000});
  initialise_decoder(driver.chain(), config, 11, [&](int unit) {
    return unit == 4 ? UnitValues{shard, 700} : UnitValues{whole(unit).values, 0};
  });
  EXPECT_TRUE(shard.equal(flat.narrow(0, 700, 1000)));
}

} // namespace
} // namespace palimpsest
