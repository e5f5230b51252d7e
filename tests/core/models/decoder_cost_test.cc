// Formulas against what the blocks themselves take on the CPU, and against published ones.

#include <palimpsest/core/models/decoder_cost.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/models/frozen_codec.h>
#include <palimpsest/memory/profile/profile.h>

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/zeros.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

struct Shape {
  DecoderConfig config;
  DecoderWork work;

  std::string text() const {
    return fmt::format(
        "{} hidden {} inner {} heads {}/{}x{} vocabulary {} {} {}, {}x{} tokens in {} bytes, "
        "dropout "
        "{}, windows {}{}, frozen: {}, {} adapters",
        config.family->name,
        config.hidden_size,
        config.intermediate_size,
        config.num_attention_heads,
        config.num_key_value_heads,
        config.head_dim,
        config.vocab_size,
        config.tie_word_embeddings ? "tied" : "untied",
        name_of(config.hidden_act),
        work.samples,
        work.tokens,
        c10::elementSize(work.decoder.compute),
        work.decoder.residual_dropout,
        fmt::join(config.windows, " "),
        work.packed ? ", packed" : "",
        !work.decoder.trainable              ? "nothing"
            : work.decoder.frozen == nullptr ? "as computed"
                                             : work.decoder.frozen->name(),
        work.decoder.adapters.layers.size());
  }
};

struct Widths {
  int64_t hidden = 0;
  int64_t inner = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t vocabulary = 0;
};

Shape shape(
    const Widths& widths,
    int64_t samples,
    int64_t tokens,
    at::ScalarType compute,
    bool tied = false) {
  DecoderConfig config{
      .vocab_size = widths.vocabulary,
      .hidden_size = widths.hidden,
      .intermediate_size = widths.inner,
      .num_hidden_layers = 2,
      .num_attention_heads = widths.heads,
      .num_key_value_heads = widths.kv_heads,
      .tie_word_embeddings = tied};
  return {
      complete_decoder_config(config, "test"),
      {.samples = samples, .tokens = tokens, .decoder = {.compute = compute}}};
}

/// Another family's decoder of a shape.
Shape of_family(Shape given, const char* name) {
  DecoderConfig& config = given.config;
  config.family = find_decoder_family(name);
  config.qkv_bias = config.family->qkv_bias == Presence::kAlways;
  config.output_bias = config.family->output_bias == Presence::kAlways;
  config.mlp_bias = config.family->mlp_bias == Presence::kAlways;
  config.hidden_act = config.family->hidden_act;
  config.tie_word_embeddings = config.family->tie_word_embeddings;
  config = complete_decoder_config(config, "test");
  return given;
}

/// With only those parameters trained whose names hold one of these words; linear weights that are
/// not are held in `type`, if one is given.
Shape training_only(Shape given, std::vector<std::string> words, const char* type) {
  given.work.decoder.trainable = [words = std::move(words)](const std::string& name) {
    return std::ranges::any_of(
        words, [&](const std::string& word) { return name.find(word) != std::string::npos; });
  };
  if (type != nullptr) {
    given.work.decoder.frozen = frozen_codec(type, given.work.decoder.compute);
  }
  return given;
}

/// Partly frozen decoders, the first one's weights larger than all else where they are copied.
void add_frozen(std::vector<Shape>& all, at::ScalarType compute) {
  const Shape wide = shape({256, 704, 8, 4, 300}, 1, 8, compute);
  const Shape llama = shape({96, 250, 6, 2, 300}, 2, 64, compute); // no multiples of 64
  const std::vector<const char*> types = compute == at::kFloat
      ? std::vector<const char*>{"bf16", "nf4"}
      : std::vector<const char*>{"fp32", "int8"};
  for (const char* type : types) {
    all.push_back(training_only(wide, {"norm"}, type));
    all.push_back(training_only(llama, {"lm_head", "layers.1"}, type));
    all.push_back(training_only(of_family(llama, "qwen3"), {"k_norm", "o_proj"}, type));
    all.push_back(training_only(wide, {"q_proj", "up_proj"}, type)); // parts of products
    all.push_back(training_only(
        of_family(llama, "qwen2"), {"q_proj", "v_proj.weight", "k_proj.bias", "gate"}, type));
    all.push_back(training_only(
        of_family(shape({64, 256, 4, 4, 300}, 2, 64, compute), "gpt2"), {"bias", "wpe"}, type));
  }
  all.push_back(
      training_only(llama, {"embed", "down_proj", "q_proj", "k_proj", "v_proj"}, nullptr));
  all.push_back(
      training_only(shape({64, 176, 4, 2, 256}, 2, 32, compute, true), {"gate", "up"}, nullptr));
  all.push_back(training_only(llama, {"k_proj", "gate", "norm"}, nullptr));
}

/// With adapters of rank 4 on some linear layers.
Shape adapted(Shape given, std::vector<std::string> targets, double dropout) {
  given.work.decoder.adapters = choose_adapters(
      {.rank = 4, .alpha = 8, .dropout = dropout, .targets = std::move(targets)},
      linear_layers(given.config));
  return given;
}

void add_adapted(std::vector<Shape>& all, at::ScalarType compute) {
  const Shape llama = shape({96, 256, 6, 2, 300}, 2, 64, compute);
  Shape gpt2 = of_family(shape({64, 256, 4, 4, 300}, 2, 64, compute), "gpt2");
  Shape coded = llama;
  coded.work.decoder.frozen = frozen_codec("nf4", compute);
  for (const double dropout : {0.0, 0.1}) {
    all.push_back(adapted(llama, {"all-linear"}, dropout));
    all.push_back(adapted(llama, {"q_proj", "v_proj"}, dropout));
    all.push_back(adapted(coded, {"all-linear"}, dropout));
    all.push_back(adapted(of_family(llama, "qwen3"), {"k_proj", "down_proj"}, dropout));
    all.push_back(adapted(gpt2, {"all-linear"}, dropout));
    gpt2.work.decoder.residual_dropout = 0.1;
  }
}

std::vector<Shape> shapes() {
  std::vector<Shape> all;
  for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
    all.push_back(shape({64, 176, 4, 2, 256}, 2, 32, compute, true));
    all.push_back(shape({96, 256, 6, 6, 300}, 1, 100, compute));
    all.push_back(shape({96, 64, 6, 1, 5000}, 3, 33, compute)); // attention and head outweigh
    all.push_back(shape({256, 704, 8, 4, 1024}, 2, 512, compute));
    all.push_back(shape({256, 704, 8, 4, 40000}, 1, 300, compute, true)); // several chunks
    all.push_back(shape({64, 512, 2, 2, 64}, 1, 1, compute));
    all.push_back(shape({128, 344, 4, 2, 512}, 2, 48, compute));
    all.back().work.decoder.residual_dropout = 0.1;
    all.push_back(shape({128, 344, 4, 2, 512}, 2, 48, compute));
    all.back().config.hidden_act = HiddenAct::kRelu;
    all.push_back(shape({128, 344, 4, 2, 512}, 1, 640, compute));
    all.back().config.qkv_bias = true;
    all.back().config.output_bias = true;
    all.back().config.mlp_bias = true;
    all.back().config.attention_dropout = 0.1;
    for (const DecoderFamily& family : decoder_families()) {
      const char* name = family.name.data();
      const int64_t kv_heads = family.rotary ? 2 : 4;
      all.push_back(of_family(shape({64, 176, 4, kv_heads, 256}, 2, 32, compute), name));
      all.push_back(of_family(shape({128, 344, 4, kv_heads, 512}, 1, 600, compute), name));
      all.push_back(
          of_family(shape({96, 64, 6, family.rotary ? 1 : 6, 300}, 3, 33, compute), name));
      all.back().work.decoder.residual_dropout = 0.1;
      all.back().work.decoder.embedding_dropout = 0.1;
      const Shape dropping = all.back();
      all.push_back(of_family(shape({64, 176, 4, kv_heads, 256}, 2, 96, compute), name));
      all.back().work.packed = true;
      all.push_back(dropping);
      all.back().work.packed = true;
    }
    add_adapted(all, compute);
    add_frozen(all, compute);
    all.push_back(of_family(shape({128, 344, 4, 2, 512}, 2, 640, compute), "mistral"));
    all.back().config.windows = {100, 100};
    all.push_back(of_family(shape({128, 344, 4, 2, 512}, 2, 48, compute), "qwen3"));
    all.back().config.head_dim = 64; // wider than the hidden size
    all.back().config.windows = {0, 7};
    all.push_back(shape({128, 344, 4, 2, 5000}, 2, 48, compute));
    all.back().work.precision = {
        .master = false, .gradients = at::kBFloat16, .moments = at::kBFloat16};
  }
  return all;
}

/// Its attention works on as many tiles as this process has threads.
DeviceSpeed this_cpu() {
  return {
      .flops = 1e12, .bandwidth = 1e11, .latency = 0, .attention_threads = at::get_num_threads()};
}

ModelCost measured(const Shape& given) {
  install_cpu_allocator();
  MemoryContext memory("measured");
  const ScopedContext here(memory);
  Chain chain = build_decoder(given.config, given.work.decoder);
  MicroBatch batch{
      .inputs = at::zeros({given.work.samples, given.work.tokens}, at::kLong),
      .labels = at::zeros({given.work.samples, given.work.tokens}, at::kLong)};
  batch.target_count = batch.token_count = given.work.samples * given.work.tokens;
  batch.rows = at::zeros({given.work.samples}, at::kLong);
  if (given.work.packed) { // a document of 20 tokens, then one of all that is left
    const at::Tensor places = at::arange(given.work.tokens, at::kLong);
    batch.positions =
        places.sub(places.ge(20).to(at::kLong).mul(20)).repeat({given.work.samples, 1});
  }
  return profile(
      chain,
      batch,
      memory,
      {.moment_count = given.work.moment_count, .precision = given.work.precision});
}

/// A library's scratch is measured and not known: at most this much beside the formula.
constexpr int64_t kLibraryScratch = int64_t{2} << 20;

void expect_workspace(int64_t analytic, int64_t real, const std::string& what) {
  EXPECT_GE(real, analytic) << what;
  EXPECT_LE(real, analytic + kLibraryScratch) << what;
}

void expect_equal_blocks(const BlockCost& analytic, const BlockCost& real) {
  SCOPED_TRACE(real.name);
  EXPECT_EQ(analytic.name, real.name);
  EXPECT_EQ(analytic.reads, real.reads);
  EXPECT_EQ(analytic.saves, real.saves);
  EXPECT_EQ(analytic.units, real.units);
  EXPECT_EQ(analytic.backward_reads_units, real.backward_reads_units);
  EXPECT_EQ(analytic.value_bytes, real.value_bytes);
  EXPECT_EQ(analytic.lean_bytes, real.lean_bytes);
  EXPECT_EQ(analytic.full_bytes, real.full_bytes);
  EXPECT_EQ(analytic.weight_jobs_bytes, real.weight_jobs_bytes);
  EXPECT_EQ(analytic.forward_flops, real.forward_flops);
  EXPECT_EQ(analytic.value_flops, real.value_flops);
  EXPECT_EQ(analytic.backward_flops, real.backward_flops);
  EXPECT_EQ(analytic.lean_flops, real.lean_flops);
  expect_workspace(analytic.forward_workspace.none, real.forward_workspace.none, "forward, none");
  expect_workspace(analytic.forward_workspace.lean, real.forward_workspace.lean, "forward, lean");
  expect_workspace(analytic.forward_workspace.full, real.forward_workspace.full, "forward, full");
  expect_workspace(
      analytic.backward_workspace.lean, real.backward_workspace.lean, "backward, lean");
  expect_workspace(
      analytic.backward_workspace.full, real.backward_workspace.full, "backward, full");
  expect_workspace(analytic.weight_workspace, real.weight_workspace, "weights");
}

// Weights and gradients, masters, moments of AdamW.
TEST(DecoderCost, StatesHaveTheirBytesPerParameter) {
  constexpr auto kWide = at::kFloat;
  constexpr auto kNarrow = at::kBFloat16;
  for (const auto& [compute, precision, weight, gradient, state] :
       {std::tuple(kWide, StatePrecision(), 4, 4, 8),
        std::tuple(kNarrow, StatePrecision(), 2, 4, 12),
        std::tuple(at::kHalf, StatePrecision{.moments = kNarrow}, 2, 4, 8),
        std::tuple(kNarrow, StatePrecision{.master = false}, 2, 4, 8),
        std::tuple(
            kNarrow,
            StatePrecision{.master = false, .gradients = kNarrow, .moments = kNarrow},
            2,
            2,
            4)}) {
    Shape given = shape({64, 176, 4, 2, 256}, 2, 32, compute);
    given.work.precision = precision;
    for (const UnitCost& unit : analytic_cost(given.config, given.work, this_cpu()).units) {
      EXPECT_EQ(unit.parameter_bytes, weight * unit.elements) << unit.name;
      EXPECT_EQ(unit.gradient_bytes, gradient * unit.elements) << unit.name;
      EXPECT_EQ(unit.state_bytes, state * unit.elements) << unit.name;
    }
  }
}

TEST(DecoderCost, BytesAndFlopsAreThoseOfTheBlocks) {
  for (const Shape& given : shapes()) {
    SCOPED_TRACE(given.text());
    const ModelCost analytic = analytic_cost(given.config, given.work, this_cpu());
    const ModelCost real = measured(given);
    EXPECT_EQ(analytic.batch_bytes, real.batch_bytes);
    ASSERT_EQ(analytic.units.size(), real.units.size());
    for (size_t unit = 0; unit < real.units.size(); ++unit) {
      EXPECT_EQ(analytic.units[unit].name, real.units[unit].name);
      EXPECT_EQ(analytic.units[unit].elements, real.units[unit].elements);
      EXPECT_EQ(analytic.units[unit].parameter_bytes, real.units[unit].parameter_bytes);
      EXPECT_EQ(analytic.units[unit].gradient_bytes, real.units[unit].gradient_bytes);
      EXPECT_EQ(analytic.units[unit].state_bytes, real.units[unit].state_bytes);
      EXPECT_EQ(analytic.units[unit].frozen, real.units[unit].frozen);
    }
    ASSERT_EQ(analytic.blocks.size(), real.blocks.size());
    for (size_t block = 0; block < real.blocks.size(); ++block) {
      expect_equal_blocks(analytic.blocks[block], real.blocks[block]);
    }
    ASSERT_EQ(analytic.layers.size(), real.layers.size());
    EXPECT_EQ(analytic.layers.back().name, real.layers.back().name);
    EXPECT_EQ(analytic.layers.back().blocks, real.layers.back().blocks);
  }
}

TEST(DecoderCost, ASecondIsSpentOnArithmeticOrOnMemoryAndOnEachKernel) {
  const Shape given = shape({256, 704, 8, 4, 1024}, 2, 512, at::kFloat);
  const double never = 1e30;
  const auto cost = [&](const DeviceSpeed& device) {
    return analytic_cost(given.config, given.work, device).blocks[2];
  };
  const BlockCost arithmetic = cost({.flops = 1, .bandwidth = never});
  EXPECT_DOUBLE_EQ(arithmetic.forward_seconds, arithmetic.forward_flops);
  EXPECT_DOUBLE_EQ(arithmetic.value_seconds.lean, arithmetic.value_flops);
  EXPECT_DOUBLE_EQ(arithmetic.input_seconds + arithmetic.weight_seconds, arithmetic.backward_flops);
  EXPECT_DOUBLE_EQ(arithmetic.input_seconds, arithmetic.weight_seconds);
  // Rows of 256 and 704 floats. Norm: read, written; gate and up; their product; down.
  const double rows = 1024;
  const BlockCost memory = cost({.flops = never, .bandwidth = 4});
  EXPECT_DOUBLE_EQ(
      memory.forward_seconds,
      rows * 2 * 256 + (rows * 256 + 256 * 1408 + rows * 1408) + rows * 3 * 704 +
          (rows * 704 + 704 * 256 + rows * 256));
  const BlockCost kernels = cost({.flops = never, .bandwidth = never, .latency = 1});
  EXPECT_DOUBLE_EQ(kernels.forward_seconds, 4); // norm, gate and up, product, down
  EXPECT_DOUBLE_EQ(kernels.value_seconds.full, 1);
  EXPECT_DOUBLE_EQ(kernels.weight_seconds, 2);
}

// Narrow windows make attention linear in the length: w (w + 1) / 2 + (t - w) w pairs of a query and
// a key, of 4 flops a feature.
TEST(DecoderCost, AWindowCountsThePairsThatItLeaves) {
  Shape given = shape({256, 704, 8, 4, 1024}, 3, 512, at::kFloat);
  const auto flops = [&] {
    return analytic_cost(given.config, given.work, {}).blocks[1].forward_flops;
  };
  const double products = 3.0 * 512 * 2 * 256 * (2 * 256 + 2 * 128);
  EXPECT_DOUBLE_EQ(flops(), products + 3.0 * 4 * 256 * (512 * 513 / 2.0));
  given.config.family = find_decoder_family("mistral");
  given.config.windows = {10, 0};
  EXPECT_DOUBLE_EQ(flops(), products + 3.0 * 4 * 256 * (10 * 11 / 2.0 + 502 * 10.0));
  given.config.windows = {512, 0};
  EXPECT_DOUBLE_EQ(flops(), products + 3.0 * 4 * 256 * (512 * 513 / 2.0));
}

// 4.5 bits a weight: q, k, v and the output, then gate, up and down.
TEST(DecoderCost, FrozenWeightsTakeTheirCodes) {
  const Shape given =
      training_only(shape({256, 704, 8, 4, 1024}, 1, 8, at::kBFloat16), {"norm"}, "nf4");
  const ModelCost cost = analytic_cost(given.config, given.work, this_cpu());
  std::map<std::string, UnitCost> units;
  for (const UnitCost& unit : cost.units) {
    units[unit.name] = unit;
  }
  const UnitCost& attention = units.at("model.layers.0.self_attn.frozen.nf4");
  EXPECT_EQ(attention.parameter_bytes, 256 * (512 + 256) * 9 / 16);
  const UnitCost& mlp = units.at("model.layers.1.mlp.frozen.nf4");
  EXPECT_EQ(mlp.parameter_bytes, 3 * 256 * 704 * 9 / 16);
  EXPECT_EQ(mlp.gradient_bytes + mlp.state_bytes, 0);
  EXPECT_EQ(units.at("model.layers.1.mlp").elements, 256);
  EXPECT_EQ(units.at("lm_head.frozen").parameter_bytes, 1024 * 256 * 2);
  EXPECT_EQ(cost.blocks[1].weight_seconds, 0);
}

double backward_flops(const Shape& given, size_t block) {
  return analytic_cost(given.config, given.work, {}).blocks[block].backward_flops;
}

// Products once for the input's gradient and once more for each trained weight; scores always twice.
TEST(DecoderCost, FrozenWeightsAndAdaptersCountWhatTheirBackwardDoes) {
  const Shape full = shape({256, 704, 8, 4, 1024}, 2, 512, at::kBFloat16);
  constexpr double kRows = 2 * 512;
  constexpr double kScores = 2 * 4 * 256 * (512 * 513 / 2.0);
  constexpr double kQkv = kRows * 2 * 256 * 512;
  constexpr double kOutput = kRows * 2 * 256 * 256;
  constexpr double kMlp = 3 * kRows * 2 * 256 * 704;
  constexpr double kHead = kRows * 2 * 256 * 1024;
  EXPECT_EQ(backward_flops(full, 3), 2 * (kQkv + kOutput + kScores));
  EXPECT_EQ(backward_flops(full, 4), 2 * kMlp);
  EXPECT_EQ(backward_flops(full, 5), 2 * kHead);

  // q, k, v and output; gate, up and down: a product of A and one of B for each
  const Shape lora = adapted(full, {"all-linear"}, 0);
  constexpr double kAttentionAdapters = kRows * 2 * 4 * (2 * (256 + 256) + 2 * (256 + 128));
  constexpr double kMlpAdapters = kRows * 2 * 4 * 3 * (256 + 704);
  EXPECT_EQ(backward_flops(lora, 3), kQkv + kOutput + 2 * kScores + 2 * kAttentionAdapters);
  EXPECT_EQ(backward_flops(lora, 4), kMlp + 2 * kMlpAdapters);
  EXPECT_EQ(backward_flops(lora, 5), kHead);

  for (const char* type : {static_cast<const char*>(nullptr), "nf4"}) {
    const Shape attention = training_only(full, {"self_attn", "lm_head"}, type);
    EXPECT_EQ(backward_flops(attention, 3), 2 * (kQkv + kOutput + kScores));
    EXPECT_EQ(backward_flops(attention, 4), kMlp);
    EXPECT_EQ(backward_flops(attention, 5), 2 * kHead);
  }
  const Shape half = training_only(full, {"o_proj", "down_proj"}, nullptr);
  EXPECT_EQ(backward_flops(half, 3), kQkv + 2 * kOutput + 2 * kScores);
  EXPECT_EQ(backward_flops(half, 4), kMlp * 4 / 3);
}

// All of the device's arithmetic: what a backward takes is what it computes, and of an adapter what
// its weights' gradients are made of again.
TEST(DecoderCost, FrozenWeightsTakeNoSecondsForTheirGradients) {
  Shape frozen =
      training_only(shape({256, 704, 8, 4, 1024}, 2, 512, at::kFloat), {"attn"}, nullptr);
  const DeviceSpeed arithmetic{.flops = 1, .bandwidth = 1e30};
  const BlockCost mlp = analytic_cost(frozen.config, frozen.work, arithmetic).blocks[2];
  EXPECT_DOUBLE_EQ(mlp.input_seconds, mlp.backward_flops);
  EXPECT_EQ(mlp.weight_seconds, 0);
  // only B is trained: x A^T again, and one product for the gradient
  frozen = adapted(frozen, {"down_proj"}, 0);
  frozen.work.decoder.trainable = [](const std::string& name) {
    return name.find("lora_B") != std::string::npos;
  };
  const BlockCost half = analytic_cost(frozen.config, frozen.work, arithmetic).blocks[2];
  EXPECT_DOUBLE_EQ(half.weight_seconds, 1024.0 * 2 * 4 * 256);
  EXPECT_DOUBLE_EQ(
      half.input_seconds + half.weight_seconds, half.backward_flops + 1024.0 * 2 * 4 * 704);
}

TEST(DecoderCost, RefusesNoTokens) {
  const Shape given = shape({64, 176, 4, 2, 256}, 1, 0, at::kFloat);
  EXPECT_THROW(analytic_cost(given.config, given.work, {}), InternalError);
}

/// A tensor that a standard layer keeps for its backward.
struct Kept {
  const char* name;
  double hidden; // bytes, in s b h
  double scores = 0; // bytes, in a s^2 b
  bool split = false; // by tensor parallelism
};

/// Of a GPT layer in two bytes an element with dropout (Korthikanti et al. 2022, arXiv:2205.05198,
/// section 4.1); masks take one byte.
const std::vector<Kept>& kept_by_a_standard_layer() {
  static const std::vector<Kept> all = {
      {"first norm's input", 2},
      {"input of q, k, v", 2},
      {"q and k", 4, 0, true},
      {"softmax's output", 0, 2, true},
      {"mask of the probabilities", 0, 1, true},
      {"dropped probabilities", 0, 2, true},
      {"v", 2, 0, true},
      {"projection's input", 2, 0, true},
      {"mask after attention", 1},
      {"second norm's input", 2},
      {"input of the first linear", 2},
      {"GeLU's input", 8, 0, true},
      {"input of the second linear", 8, 0, true},
      {"mask after the MLP", 1},
  };
  return all;
}

/// Bytes over s b h with a s / h scores a hidden element, over t ranks.
double kept_bytes(double scores, double t, bool sequence_parallel, bool keeps_scores) {
  double bytes = 0;
  for (const Kept& kept : kept_by_a_standard_layer()) {
    bytes += (kept.hidden + (keeps_scores ? kept.scores * scores : 0)) /
        (kept.split || sequence_parallel ? t : 1);
  }
  return bytes;
}

TEST(DecoderCost, AStandardLayersChoicesAreThePublishedFormulas) {
  for (const double scores : {0.5, 4.0, 80.0}) { // a s / h
    for (const double t : {1.0, 2.0, 8.0}) {
      EXPECT_DOUBLE_EQ(kept_bytes(scores, 1, false, true), 34 + 5 * scores);
      EXPECT_DOUBLE_EQ(kept_bytes(scores, t, false, true), 10 + 24 / t + 5 * scores / t);
      EXPECT_DOUBLE_EQ(kept_bytes(scores, t, true, true), (34 + 5 * scores) / t);
      EXPECT_DOUBLE_EQ(kept_bytes(scores, t, true, false), 34 / t); // selective recomputation
    }
  }
}

// Ours keeps of these what is no score and no mask, and for gate and up twice the first linear's
// output: 34 - 2 (masks) + 8. In place of the scores stand a float a query and head, of norms a
// float a row.
TEST(DecoderCost, OurLayerKeepsNoScoresAndNoMasks) {
  const int64_t s = 256;
  const int64_t b = 3;
  const int64_t h = 512;
  const int64_t a = 8;
  const Shape given = shape({h, 4 * h, a, a, 1000}, b, s, at::kBFloat16);
  const ModelCost cost = analytic_cost(given.config, given.work, {});
  int64_t kept = 0;
  for (const int block : {1, 2}) { // its tape, and its input, which is the block before's value
    kept += cost.blocks[static_cast<size_t>(block)].full_bytes +
        cost.blocks[static_cast<size_t>(block) - 1].value_bytes[0];
  }
  EXPECT_EQ(kept, s * b * h * (34 - 2 + 8) + 4 * a * s * b + 2 * 4 * s * b);
}

/// Of a step: the layers' forwards so many times, all backwards, the head once.
double step_flops(const ModelCost& cost, int forwards) {
  double flops = 0;
  for (size_t block = 0; block < cost.blocks.size(); ++block) {
    const bool head = block + 1 == cost.blocks.size();
    flops += cost.blocks[block].forward_flops * (head ? 1 : forwards) +
        cost.blocks[block].backward_flops;
  }
  return flops;
}

// Theirs count all scores, ours those that the causal mask leaves: (s + 1) / 2 of s a query.
TEST(DecoderCost, FlopsAreThoseOfMegatronAndOfPyTorch) {
  const double b = 3;
  const double s = 128;
  const double h = 384;
  const double v = 1000;
  const double l = 2;
  const double seen = (s + 1) / 2;
  // three matrices of 8 h / 3 are two of 4 h
  const Shape given = shape({384, 1024, 6, 6, 1000}, 3, 128, at::kBFloat16);
  const ModelCost cost = analytic_cost(given.config, given.work, {});
  // Narayanan et al. 2021 (arXiv:2104.04473), with full recomputation; and without it
  EXPECT_DOUBLE_EQ(
      step_flops(cost, 2), 96 * b * s * l * h * h * (1 + seen / (6 * h) + v / (16 * l * h)));
  EXPECT_DOUBLE_EQ(
      step_flops(cost, 1), 72 * b * s * l * h * h * (1 + seen / (6 * h) + v / (12 * l * h)));
  // torchtitan's and PaLM's (arXiv:2204.02311, appendix B): 6 N + 12 L H Q T a token, N without the
  // embedding; norms' gains are no products
  const double gains = (2 * l + 1) * h;
  const double n = static_cast<double>(parameter_count(given.config)) - v * h - gains;
  EXPECT_DOUBLE_EQ(step_flops(cost, 1), b * s * (6 * n + 12 * l * h * seen));
}

} // namespace
} // namespace palimpsest
