// What frozen weights are held in, and that blocks compute with the decoded values bit for bit.

#include <palimpsest/core/models/frozen_codec.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/head_block.h>
#include <palimpsest/core/models/mlp_chain.h>
#include <palimpsest/tests/core/models/chain_driver.h>

#include <ATen/ops/full.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

const std::vector<const char*> kTypes = {"fp32", "bf16", "fp16", "int8", "nf4"};

bool is_norm(const std::string& name) {
  return name.find("norm") != std::string::npos || name.find("ln_") != std::string::npos;
}

TEST(FrozenCodec, HoldsSoManyBitsAValue) {
  const auto bits = [](const char* type) {
    const auto codec = frozen_codec(type, at::kDouble);
    return static_cast<double>(codec->held(6400)) *
        static_cast<double>(c10::elementSize(codec->dtype())) * 8 / 6400;
  };
  EXPECT_EQ(bits("fp32"), 32);
  EXPECT_EQ(bits("bf16"), 16);
  EXPECT_EQ(bits("fp16"), 16);
  EXPECT_EQ(bits("int8"), 8.5);
  EXPECT_EQ(bits("nf4"), 4.5);
  EXPECT_EQ(frozen_codec("bf16", at::kBFloat16), nullptr);
  EXPECT_EQ(frozen_codec("fp32", at::kFloat), nullptr);
  EXPECT_THROW(frozen_codec("fp4", at::kFloat), InternalError);
}

TEST(FrozenCodec, WhatATypeCannotHoldIsTold) {
  for (const char* type : kTypes) {
    const auto codec = frozen_codec(type, at::kDouble);
    at::Tensor values = at::full({100}, 3.0F);
    const at::Tensor held =
        at::zeros({codec->held(100)}, at::TensorOptions().dtype(codec->dtype()));
    EXPECT_TRUE(codec->encode(values, held));
    const at::Tensor back = at::zeros({100});
    codec->decode(held, back);
    EXPECT_LE(relative_difference(back, values), 1e-6);
    values[77] = 1e5F;
    EXPECT_EQ(codec->encode(values, held), type != std::string("fp16"));
    values[77] = std::numeric_limits<float>::infinity();
    EXPECT_FALSE(codec->encode(values, held)) << type;
  }
}

// The units of one block: its norm, what a codec holds, and nothing else; a half of 24 x 24 weights
// lies in nine blocks.
TEST(FrozenCodec, HoldsTheLayersMatricesOnly) {
  const DecoderConfig config = complete_decoder_config(
      {.vocab_size = 67,
       .hidden_size = 24,
       .intermediate_size = 50,
       .num_hidden_layers = 1,
       .num_attention_heads = 4,
       .num_key_value_heads = 2},
      "test");
  const auto nf4 = frozen_codec("nf4", at::kFloat);
  const Chain chain = build_decoder(config, {.trainable = is_norm, .frozen = nf4});
  for (const auto& unit : chain.units) {
    EXPECT_EQ(unit->codec() != nullptr, unit->name().ends_with(".frozen.nf4")) << unit->name();
    for (const Parameter& parameter : unit->parameters()) {
      const bool matrix = parameter.name.find("_proj") != std::string::npos;
      EXPECT_EQ(unit->codec() != nullptr, matrix) << parameter.name;
      EXPECT_EQ(parameter.offset % (matrix ? 64 : 1), 0) << parameter.name;
    }
  }
  EXPECT_EQ(chain.parameter_count(), parameter_count(config));
  EXPECT_EQ(chain.trained_count(), 3 * 24);
}

MicroBatch random_batch(int64_t vocabulary) {
  const at::Tensor ids = at::randint(vocabulary, {3, 20}, at::TensorOptions().dtype(at::kLong));
  return token_batch(ids, ids);
}

/// The same frozen weights, decoded beforehand.
void copy_decoded(ChainDriver& from, ChainDriver& to) {
  for (const std::string& name : to.parameter_names()) {
    to.parameter(name).copy_(from.parameter(name));
  }
}

// Weights that are no multiples of a block among them, transposed ones (GPT-2), all kinds of tapes.
TEST(FrozenCodec, BlocksComputeWithTheDecodedValues) {
  for (const char* family : {"llama", "gpt2", "gemma"}) {
    DecoderConfig config{.family = find_decoder_family(family)};
    config.vocab_size = 67;
    config.hidden_size = 24;
    config.intermediate_size = 50;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.num_key_value_heads = family == std::string("gpt2") ? 4 : 2;
    config.hidden_act = config.family->hidden_act;
    config.qkv_bias = config.output_bias = config.mlp_bias = family == std::string("gpt2");
    config.tie_word_embeddings = config.family->tie_word_embeddings;
    config = complete_decoder_config(config, "test");
    const MicroBatch batch = random_batch(67);
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      for (const char* type : kTypes) {
        SCOPED_TRACE(fmt::format("{} {} {}", family, c10::toString(compute), type));
        DecoderOptions options{.compute = compute, .trainable = is_norm};
        ChainDriver decoded(build_decoder(config, options));
        options.frozen = frozen_codec(type, compute);
        ChainDriver held(build_decoder(config, options));
        initialise_decoder(held.chain(), config, 5, held.source());
        copy_decoded(held, decoded);
        const double loss = decoded.run({batch}).loss_sum;
        const Tensors gradients = decoded.gradients();
        for (const DriverOptions& way : std::vector<DriverOptions>{
                 {},
                 {.tape = TapeMode::kLean, .recompute = true},
                 {.split = true, .regather = true}}) {
          EXPECT_EQ(held.run({batch}, way).loss_sum, loss);
          EXPECT_TRUE(bitwise_equal(held.gradients(), gradients));
        }
      }
    }
  }
}

// Logits of the golden model, whose weights are random: the largest difference, of the largest logit.
// A normal weight is off by 0.1 % (bf16), 0.013 % (fp16), 0.6 % (int8), 9 % (nf4) of its size in the
// mean, and 28 products follow each other; these bounds are 7 times that.
TEST(FrozenCodec, LogitsOfTheGoldenModelMoveByAsMuchAsIsDocumented) {
  const std::string folder_name = model_folder("llama-tiny");
  HfFolder folder(folder_name);
  const DecoderConfig config = parse_decoder_config(folder.config_text(), folder.config_path());
  settle_folder(folder, config);
  const std::string file = folder_name + "/golden.safetensors";
  const MicroBatch batch = token_batch(read_tensor(file, "input_ids"), read_tensor(file, "labels"));
  const at::Tensor expected = read_tensor(file, "logits");
  for (const auto& [type, bound] : std::vector<std::pair<const char*, double>>{
           {"bf16", 0.007}, {"fp16", 0.0009}, {"int8", 0.04}, {"nf4", 0.65}}) {
    ChainDriver driver(
        build_decoder(config, {.trainable = is_norm, .frozen = frozen_codec(type, at::kFloat)}));
    load_weights(folder, driver.chain(), driver.source());
    const StepResult step = driver.evaluate({batch});
    const at::Tensor logits =
        dynamic_cast<const HeadBlock&>(*driver.chain().terminal).logits(step.terminal_inputs[0]);
    const double moved = relative_difference(logits.view(expected.sizes()), expected);
    EXPECT_LE(moved, bound) << type;
    EXPECT_GE(moved, bound / 20) << type;
  }
}

TEST(FrozenCodec, AnMlpsFrozenWeightsAreHeldToo) {
  const auto frozen = [](const std::string& name) { return name.starts_with("layers.1"); };
  const auto trained = [&](const std::string& name) { return !frozen(name); };
  ChainDriver driver(build_mlp_chain(
      {.widths = {7, 20, 11, 3},
       .trainable = trained,
       .frozen = frozen_codec("int8", at::kFloat)}));
  initialise_mlp_chain(driver.chain(), 5, driver.source());
  ChainDriver decoded(build_mlp_chain({.widths = {7, 20, 11, 3}, .trainable = trained}));
  copy_decoded(driver, decoded);
  const MicroBatch batch{
      .inputs = at::randn({4, 7}), .labels = at::randn({4, 3}), .target_count = 12};
  EXPECT_EQ(driver.run({batch}).loss_sum, decoded.run({batch}).loss_sum);
  EXPECT_TRUE(bitwise_equal(driver.gradients(), decoded.gradients()));
}

TEST(FrozenCodec, AWeightThatCannotBeHeldIsNamed) {
  const Chain chain = build_mlp_chain(
      {.widths = {4, 4},
       .trainable = [](const std::string& name) { return name.ends_with("bias"); },
       .frozen = frozen_codec("nf4", at::kFloat)});
  const at::Tensor codes = at::zeros({36}, at::kByte);
  const at::Tensor bias = at::zeros({4});
  const UnitSource source = [&](int unit) {
    return UnitValues{.values = chain.units[static_cast<size_t>(unit)]->trainable() ? bias : codes};
  };
  EXPECT_THAT(
      [&] {
        fill_parameters(chain, source, [](const Parameter&, int64_t, const at::Tensor& values) {
          values.fill_(std::numeric_limits<double>::quiet_NaN());
          return true;
        });
      },
      ThrowsMessage<UserError>(
          AllOf(HasSubstr("layers.0.weight"), HasSubstr("nf4"), HasSubstr("precision.frozen"))));
}

} // namespace
} // namespace palimpsest
