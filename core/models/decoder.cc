#include <palimpsest/core/models/decoder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/models/attention_block.h>
#include <palimpsest/core/models/embedding_block.h>
#include <palimpsest/core/models/head_block.h>
#include <palimpsest/core/models/mlp_block.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

kernels::Activation activation_of(HiddenAct act) {
  switch (act) {
    case HiddenAct::kSilu:
      return kernels::Activation::kSilu;
    case HiddenAct::kGelu:
      return kernels::Activation::kGeluErf;
    case HiddenAct::kGeluTanh:
      return kernels::Activation::kGeluTanh;
    case HiddenAct::kRelu:
      return kernels::Activation::kRelu;
  }
  check(false, "an activation of no known kind");
  return {};
}

namespace {

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderConfig& config, const DecoderOptions& options)
      : config_(config), options_(options),
        trainable_(options.trainable ? options.trainable : [](const std::string&) { return true; }),
        rotary_(std::make_shared<RotaryCache>(
            config.rope,
            config.head_dim,
            config.max_position_embeddings)) {}

  Chain build() {
    const ParamRef table = add_embedding();
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const std::string name = "model.layers." + std::to_string(layer);
      const int first = chain_.terminal_index();
      add_attention(name);
      add_mlp(name);
      chain_.layers.push_back({.name = name, .blocks = {first, chain_.terminal_index()}});
    }
    add_head(table);
    return std::move(chain_);
  }

 private:
  BlockUnits units(const std::string& name, const std::vector<std::vector<Parameter>>& groups) {
    return add_units(chain_, name, groups, options_.compute, trainable_);
  }

  /// A block that reads the one before it, and needs that again in its backward.
  void add(std::unique_ptr<Block> block, std::string name, std::vector<int> unit_numbers) {
    const ValueRef read{chain_.terminal_index() - 1, 0};
    chain_.blocks.push_back(
        {.block = std::move(block),
         .name = std::move(name),
         .reads = {read},
         .saves = {read},
         .values = 1,
         .units = std::move(unit_numbers)});
  }

  /// The weights of linear layers that are one product, and their biases where there are any.
  struct Linear {
    std::vector<Parameter> weights;
    std::vector<Parameter> biases;
  };
  static Linear linear(
      const std::vector<std::pair<std::string, int64_t>>& names_and_rows,
      int64_t columns,
      bool bias) {
    Linear result;
    for (const auto& [name, rows] : names_and_rows) {
      result.weights.push_back({.name = name + ".weight", .shape = {rows, columns}});
      if (bias) {
        result.biases.push_back({.name = name + ".bias", .shape = {rows}});
      }
    }
    return result;
  }

  Parameter norm(const std::string& name) const {
    return {.name = name + ".weight", .shape = {config_.hidden_size}};
  }

  ParamRef add_embedding() {
    const BlockUnits made = units(
        "model.embed_tokens",
        {{{.name = std::string(kEmbeddingName),
           .shape = {config_.vocab_size, config_.hidden_size}}}});
    add(std::make_unique<EmbeddingBlock>(made.refs[0]), "model.embed_tokens", made.units);
    chain_.blocks.back().backward_reads_units = false;
    return made.refs[0];
  }

  void add_attention(const std::string& layer) {
    const std::string name = layer + ".self_attn";
    const int64_t q_rows = config_.num_attention_heads * config_.head_dim;
    const int64_t kv_rows = config_.num_key_value_heads * config_.head_dim;
    const Linear qkv = linear(
        {{name + ".q_proj", q_rows}, {name + ".k_proj", kv_rows}, {name + ".v_proj", kv_rows}},
        config_.hidden_size,
        config_.attention_bias);
    const Linear output =
        linear({{name + ".o_proj", config_.hidden_size}}, q_rows, config_.attention_bias);
    const BlockUnits made = units(
        name,
        {{norm(layer + ".input_layernorm")},
         qkv.weights,
         qkv.biases,
         output.weights,
         output.biases});
    const AttentionShape shape{
        .hidden_size = config_.hidden_size,
        .num_heads = config_.num_attention_heads,
        .num_kv_heads = config_.num_key_value_heads,
        .head_dim = config_.head_dim,
        .rms_norm_eps = config_.rms_norm_eps,
        .attention_dropout = config_.attention_dropout,
        .residual_dropout = options_.residual_dropout,
        .block = static_cast<uint32_t>(chain_.terminal_index())};
    add(std::make_unique<AttentionBlock>(
            shape,
            AttentionWeights{made.refs[0], made.refs[1], made.refs[2], made.refs[3], made.refs[4]},
            rotary_),
        name,
        made.units);
  }

  void add_mlp(const std::string& layer) {
    const std::string name = layer + ".mlp";
    const int64_t width = config_.intermediate_size;
    const Linear gate_up = linear(
        {{name + ".gate_proj", width}, {name + ".up_proj", width}},
        config_.hidden_size,
        config_.mlp_bias);
    const Linear down =
        linear({{name + ".down_proj", config_.hidden_size}}, width, config_.mlp_bias);
    const BlockUnits made = units(
        name,
        {{norm(layer + ".post_attention_layernorm")},
         gate_up.weights,
         gate_up.biases,
         down.weights,
         down.biases});
    const MlpShape shape{
        .hidden_size = config_.hidden_size,
        .intermediate_size = width,
        .rms_norm_eps = config_.rms_norm_eps,
        .activation = activation_of(config_.hidden_act),
        .residual_dropout = options_.residual_dropout,
        .block = static_cast<uint32_t>(chain_.terminal_index())};
    add(std::make_unique<MlpBlock>(
            shape,
            MlpWeights{made.refs[0], made.refs[1], made.refs[2], made.refs[3], made.refs[4]}),
        name,
        made.units);
  }

  void add_head(const ParamRef& table) {
    std::vector<std::vector<Parameter>> groups = {{norm("model.norm")}};
    if (!config_.tie_word_embeddings) {
      groups.push_back(
          {{.name = std::string(kHeadName), .shape = {config_.vocab_size, config_.hidden_size}}});
    }
    BlockUnits made = units("lm_head", groups);
    if (config_.tie_word_embeddings) {
      made.refs.push_back(table);
      made.units.push_back(chain_.blocks.front().units.front());
    }
    chain_.terminal = std::make_unique<HeadBlock>(
        HeadShape{.rms_norm_eps = config_.rms_norm_eps, .chunk_bytes = options_.head_chunk_bytes},
        HeadWeights{.norm = made.refs[0], .weight = made.refs[1]});
    chain_.terminal_reads = {{chain_.terminal_index() - 1, 0}};
    chain_.terminal_units = made.units;
  }

  const DecoderConfig& config_;
  const DecoderOptions& options_;
  TrainableFilter trainable_;
  std::shared_ptr<RotaryCache> rotary_;
  Chain chain_;
};

} // namespace

Chain build_decoder(const DecoderConfig& config, const DecoderOptions& options) {
  return DecoderBuilder(config, options).build();
}

void initialise_decoder(
    Chain& chain,
    const DecoderConfig& config,
    uint64_t seed,
    const UnitSource& source) {
  initialise(chain, source, seed, [&](const Parameter& parameter) -> Initial {
    if (parameter.shape.size() > 1) {
      return {.std = config.initializer_range};
    }
    return {.value = parameter.name.ends_with(".bias") ? 0.0 : 1.0};
  });
}

} // namespace palimpsest
