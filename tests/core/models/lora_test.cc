// Covers: core/models/adapter_merge.cc
#include <palimpsest/tests/core/models/chain_driver.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/io/peft_folder.h>
#include <palimpsest/core/models/adapter_merge.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/head_block.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/randint.h>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>

namespace palimpsest {
namespace {

/// The largest |difference| / largest |reference|, tensor by tensor.
constexpr double kTolerance = 1e-5;

struct GoldenAdapter {
  const char* name;
  const char* model;
};

std::ostream& operator<<(std::ostream& out, const GoldenAdapter& adapter) {
  return out << adapter.name;
}

class GoldenLora : public testing::TestWithParam<GoldenAdapter> {
 protected:
  GoldenLora()
      : folder_(model_folder(GetParam().model)), config_(without_dropout()),
        adapters_(path(), linear_layers(config_)),
        driver_(build_decoder(config_, {.adapters = adapters_.adapters()})),
        batch_(token_batch(golden("input_ids"), golden("labels"))) {
    settle_folder(folder_, config_);
    load_weights(folder_, driver_.chain(), driver_.source());
    load_adapters(adapters_, driver_.chain(), driver_.source());
  }
  std::filesystem::path path() const {
    return std::filesystem::path(PALIMPSEST_TEST_DATA) / "lora" / GetParam().name;
  }
  DecoderConfig without_dropout() const {
    DecoderConfig config = parse_decoder_config(folder_.config_text(), folder_.config_path());
    config.attention_dropout = 0; // the answers are those of evaluation
    return config;
  }
  at::Tensor golden(const std::string& name) const {
    return read_tensor((path() / "golden.safetensors").string(), name);
  }
  static at::Tensor logits(ChainDriver& driver, const MicroBatch& batch) {
    const StepResult step = driver.evaluate({batch});
    const auto& head = dynamic_cast<const HeadBlock&>(*driver.chain().terminal);
    return head.logits(step.terminal_inputs[0]);
  }

  void expect_golden_gradients() {
    for (const TensorDeclaration& tensor :
         adapter_tensors(adapters_.adapters(), linear_layers(config_))) {
      EXPECT_LE(
          relative_difference(
              driver_.gradient(tensor.name), golden("grad.base_model.model." + tensor.name)),
          kTolerance)
          << tensor.name;
    }
  }

  HfFolder folder_;
  DecoderConfig config_;
  PeftFolder adapters_;
  ChainDriver driver_;
  MicroBatch batch_;
};

TEST_P(GoldenLora, LogitsLossAndEveryGradient) {
  EXPECT_LE(relative_difference(logits(driver_, batch_), golden("logits")), kTolerance);
  const double loss = golden("loss").item<double>();
  for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
    const StepResult step = driver_.run({batch_}, {.tape = tape});
    EXPECT_NEAR(step.loss_sum / static_cast<double>(batch_.target_count), loss, kTolerance * loss);
    expect_golden_gradients();
  }
}

TEST_P(GoldenLora, SequencesThatShareARowGiveTheSame) {
  const MicroBatch packed = in_one_row(batch_);
  const double loss = golden("loss").item<double>();
  for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
    const StepResult step = driver_.run({packed}, {.tape = tape, .training = false});
    EXPECT_NEAR(step.loss_sum / static_cast<double>(packed.target_count), loss, kTolerance * loss);
    expect_golden_gradients();
  }
}

TEST_P(GoldenLora, TrainsNothingElse) {
  const auto expected = adapter_tensors(adapters_.adapters(), linear_layers(config_));
  size_t trained = 0;
  for (const auto& unit : driver_.chain().units) {
    for (const Parameter& parameter : unit->parameters()) {
      EXPECT_EQ(unit->trainable(), is_adapter(parameter.name)) << parameter.name;
      trained += unit->trainable() ? 1 : 0;
    }
  }
  EXPECT_EQ(trained, expected.size());
}

TEST_P(GoldenLora, MergedWeightsGiveTheSameLogitsWithoutAdapters) {
  const std::filesystem::path folder = make_temporary_folder();
  const std::filesystem::path out = folder / "merged";
  write_hf_folder(
      out,
      layout_like(folder_),
      merge_adapters(
          export_filler(driver_.chain(), driver_.source()),
          adapters_.adapters(),
          config_.family->weights_in_out,
          [&](const std::string& name) { return driver_.parameter(name); }));
  HfFolder merged(out.string());
  settle_folder(merged, config_);
  ChainDriver plain(build_decoder(config_));
  load_weights(merged, plain.chain(), plain.source());
  EXPECT_LE(relative_difference(logits(plain, batch_), golden("merged_logits")), kTolerance);
  const std::string first = linear_layers(config_).front().name + ".weight";
  EXPECT_LE(relative_difference(plain.parameter(first), golden("merged." + first)), 1e-6);
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(
    Adapters,
    GoldenLora,
    testing::Values(
        GoldenAdapter{"llama-tiny-qv", "llama-tiny"},
        GoldenAdapter{"llama-tiny-rslora", "llama-tiny"},
        GoldenAdapter{"gpt2-tiny-patterns", "gpt2-tiny"}));

struct Variant {
  const char* family;
  std::vector<std::string> targets;
  at::ScalarType compute = at::kFloat;
};

std::ostream& operator<<(std::ostream& out, const Variant& variant) {
  return out << variant.family << " " << variant.targets.front() << " "
             << c10::toString(variant.compute);
}

/// Adapters with dropout whose B is not zero any more.
class RandomLora : public testing::TestWithParam<Variant> {
 protected:
  RandomLora() : config_(config()), driver_(build_decoder(config_, options())) {
    initialise_decoder(driver_.chain(), config_, 11, driver_.source());
    initialise(driver_.chain(), driver_.source(), 12, [](const Parameter& parameter) {
      return is_adapter(parameter.name) ? std::optional(Initial{.std = 0.2}) : std::nullopt;
    });
    const at::Tensor ids =
        at::randint(config_.vocab_size, {4, 9}, at::TensorOptions().dtype(at::kLong));
    batch_ = token_batch(ids, ids, 5);
  }
  static DecoderConfig config() {
    DecoderConfig config;
    config.family = find_decoder_family(GetParam().family);
    config.vocab_size = 96;
    config.hidden_size = 32;
    config.intermediate_size = 48;
    config.num_hidden_layers = 2;
    config.num_attention_heads = 4;
    config.num_key_value_heads = config.family->rotary ? 2 : 4;
    config.head_dim = 8;
    config.tie_word_embeddings = config.family->tie_word_embeddings;
    config.hidden_act = config.family->hidden_act;
    config.qkv_bias = config.family->qkv_bias != Presence::kNever;
    config.output_bias = config.family->output_bias != Presence::kNever;
    config.mlp_bias = config.family->mlp_bias != Presence::kNever;
    config.initializer_range = 0.2;
    return complete_decoder_config(config, "test");
  }
  DecoderOptions options() const {
    return {
        .compute = GetParam().compute,
        .residual_dropout = 0.1,
        .adapters = choose_adapters(
            {.rank = 3, .alpha = 6, .dropout = 0.3, .targets = GetParam().targets},
            linear_layers(config_))};
  }

  DecoderConfig config_;
  ChainDriver driver_;
  MicroBatch batch_;
};

TEST_P(RandomLora, EveryWayToRunABlockGivesTheSameBits) {
  const double loss = driver_.run({batch_}).loss_sum;
  const Tensors gradients = driver_.gradients();
  for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
    for (const bool recompute : {false, true}) {
      for (const bool split : {false, true}) {
        const DriverOptions options{
            .tape = tape,
            .recompute = recompute,
            .split = split,
            .stash = split != recompute,
            .regather = true};
        EXPECT_EQ(driver_.run({batch_}, options).loss_sum, loss);
        EXPECT_TRUE(bitwise_equal(driver_.gradients(), gradients));
      }
    }
  }
}

TEST_P(RandomLora, DropoutFollowsTheRowsAndTheStep) {
  const double loss = driver_.run({batch_}).loss_sum;
  const Tensors gradients = driver_.gradients();
  const MicroBatch first = rows_of(batch_, 0, 1);
  const MicroBatch rest = rows_of(batch_, 1, 3);
  const double tolerance = GetParam().compute == at::kFloat ? 1e-5 : 3e-2;
  EXPECT_NEAR(driver_.run({first, rest}).loss_sum, loss, tolerance * loss);
  const Tensors parts = driver_.gradients();
  for (size_t unit = 0; unit < gradients.size(); ++unit) {
    EXPECT_LE(relative_difference(parts[unit], gradients[unit]), tolerance);
  }
  EXPECT_NE(driver_.run({batch_}, {.step = 4}).loss_sum, loss);
}

INSTANTIATE_TEST_SUITE_P(
    Families,
    RandomLora,
    testing::Values(
        Variant{"llama", {"all-linear"}},
        Variant{"llama", {"k_proj", "v_proj", "down_proj"}},
        Variant{"qwen3", {"all-linear"}},
        Variant{"gpt2", {"all-linear"}},
        Variant{"llama", {"all-linear"}, at::kBFloat16}));

TEST(Lora, BeginsAsThePlainModelAndByNameAlone) {
  const HfFolder folder(model_folder("llama-tiny"));
  const DecoderConfig config = parse_decoder_config(folder.config_text(), folder.config_path());
  const auto build = [&](std::vector<std::string> targets) {
    const AdapterSet set = choose_adapters(
        {.rank = 4, .alpha = 8, .targets = std::move(targets)}, linear_layers(config));
    ChainDriver driver(build_decoder(config, {.adapters = set}));
    load_weights(folder, driver.chain(), driver.source());
    initialise_adapters(driver.chain(), 3, driver.source());
    return driver;
  };
  ChainDriver all = build({"all-linear"});
  ChainDriver one = build({"q_proj"});
  const std::string q = "model.layers.2.self_attn.q_proj.lora_A.weight";
  EXPECT_TRUE(all.parameter(q).equal(one.parameter(q)));
  // uniform over +-1/8 where 64 inputs come in: 256 draws reach nearly all of it
  const double largest = all.parameter(q).abs().max().item<double>();
  EXPECT_LE(largest, 0.125);
  EXPECT_GT(largest, 0.12);
  EXPECT_EQ(
      all.parameter("model.layers.2.self_attn.q_proj.lora_B.weight").abs().max().item<double>(), 0);
  ChainDriver plain(build_decoder(config));
  load_weights(folder, plain.chain(), plain.source());
  const at::Tensor ids = at::randint(512, {2, 7}, at::TensorOptions().dtype(at::kLong));
  const MicroBatch batch = token_batch(ids, ids);
  EXPECT_EQ(all.evaluate({batch}).loss_sum, plain.evaluate({batch}).loss_sum);
}

} // namespace
} // namespace palimpsest
