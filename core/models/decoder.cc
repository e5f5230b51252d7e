#include <palimpsest/core/models/decoder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/attention_block.h>
#include <palimpsest/core/models/embedding_block.h>
#include <palimpsest/core/models/head_block.h>
#include <palimpsest/core/models/mlp_block.h>

#include <fmt/format.h>

#include <cmath>
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

std::vector<ProductTensors> products_of(
    const TensorGroup& weights,
    const TensorGroup& biases,
    const TrainableFilter& trainable) {
  check(
      biases.empty() || biases.size() == weights.size(),
      "{} weights with {} biases",
      weights.size(),
      biases.size());
  const auto alike = [&](const TensorGroup& group, size_t index) {
    return group.empty() || trainable(group[index - 1].name) == trainable(group[index].name);
  };
  std::vector<ProductTensors> products;
  for (size_t index = 0; index < weights.size(); ++index) {
    if (index == 0 || !alike(weights, index) || !alike(biases, index)) {
      products.emplace_back();
    }
    products.back().weights.push_back(weights[index]);
    if (!biases.empty()) {
      products.back().biases.push_back(biases[index]);
    }
  }
  return products;
}

namespace {

/// Of a block's uses of randomness, the adapters' dropout comes behind the block's own.
constexpr uint32_t kFirstAdapterCall = 16;

class DecoderBuilder {
 public:
  DecoderBuilder(const DecoderConfig& config, const DecoderOptions& options)
      : config_(config), family_(*config.family), options_(options),
        trainable_([this](const std::string& name) {
          const bool chosen = options_.adapters.layers.empty() || is_adapter(name);
          return chosen && (!options_.trainable || options_.trainable(name));
        }),
        rotary_(
            family_.rotary ? std::make_shared<RotaryCache>(
                                 config.rope,
                                 config.head_dim,
                                 config.max_position_embeddings)
                           : nullptr) {}

  Chain build() {
    const ParamRef table = add_embedding();
    for (int64_t layer = 0; layer < config_.num_hidden_layers; ++layer) {
      const int first = chain_.terminal_index();
      add_attention(layer);
      add_mlp(layer);
      chain_.layers.push_back(
          {.name = layer_name(config_, layer), .blocks = {first, chain_.terminal_index()}});
    }
    add_head(table);
    return std::move(chain_);
  }

 private:
  BlockUnits units(
      const std::string& name,
      const std::vector<TensorGroup>& groups,
      const std::shared_ptr<const ParamCodec>& codec = nullptr) {
    std::vector<std::vector<Parameter>> parameters;
    for (const TensorGroup& group : groups) {
      parameters.emplace_back();
      for (const TensorDeclaration& tensor : group) {
        parameters.back().push_back({.name = tensor.name, .shape = tensor.shape});
      }
    }
    return add_units(chain_, name, parameters, options_.compute, trainable_, codec);
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

  uint32_t next_block() const {
    return static_cast<uint32_t>(chain_.terminal_index());
  }
  Norm norm(const ParamRef& gain, const ParamRef& bias) const {
    return {.gain = gain, .bias = bias, .kind = family_.norm, .eps = config_.norm_eps};
  }

  /// The groups of neighbouring linear layers: weights and biases of each of their products; then A
  /// and B of each adapter.
  void append_linear(
      std::vector<TensorGroup>& groups,
      const TensorGroup& weights,
      const TensorGroup& biases) const {
    for (const ProductTensors& product : products_of(weights, biases, trainable_)) {
      groups.push_back(product.weights);
      groups.push_back(product.biases);
    }
    for (const TensorDeclaration& weight : weights) {
      const LinearDeclaration layer = linear_layer(config_, weight);
      const auto found = options_.adapters.layers.find(layer.name);
      if (found != options_.adapters.layers.end()) {
        const AdapterTensors pair = adapter_tensors(layer, found->second);
        groups.push_back({pair.a});
        groups.push_back({pair.b});
      }
    }
  }

  /// Those layers, whose refs are those from `next` on; that moves behind them.
  Linear linear(
      const TensorGroup& weights,
      const TensorGroup& biases,
      const std::vector<ParamRef>& refs,
      size_t& next) const {
    Linear layer;
    int64_t first = 0;
    for (size_t left = products_of(weights, biases, trainable_).size(); left > 0; --left) {
      const ParamRef& weight = refs[next++];
      layer.products.push_back(
          {.weight = family_.weights_in_out ? weight.transposed() : weight,
           .bias = refs[next++],
           .first = first});
      first += layer.products.back().weight.rows();
    }
    first = 0;
    for (const TensorDeclaration& declared : weights) {
      const LinearDeclaration of = linear_layer(config_, declared);
      const auto found = options_.adapters.layers.find(of.name);
      if (found != options_.adapters.layers.end()) {
        layer.adapters.push_back(
            {.a = refs[next],
             .b = refs[next + 1],
             .first = first,
             .scale = options_.adapters.scale(found->second),
             .dropout = options_.adapters.dropout,
             .block = next_block(),
             .call = kFirstAdapterCall + static_cast<uint32_t>(next)});
        next += 2;
      }
      first += of.outputs;
    }
    return layer;
  }

  ParamRef add_embedding() {
    const TensorDeclaration table = embedding_tensor(config_);
    const std::string name = table.name.substr(0, table.name.rfind('.'));
    BlockUnits made = units(name, {{table}});
    ParamRef positions;
    if (const TensorGroup learned = position_tensor(config_); !learned.empty()) {
      // apart from the table, which a tied head shares
      const std::string& full = learned.front().name;
      const BlockUnits more = units(full.substr(0, full.rfind('.')), {learned});
      positions = more.refs[0];
      made.units.push_back(more.units[0]);
    }
    const double scale =
        family_.scales_embedding ? std::sqrt(static_cast<double>(config_.hidden_size)) : 1;
    add(std::make_unique<EmbeddingBlock>(
            EmbeddingShape{
                .scale = scale, .dropout = options_.embedding_dropout, .block = next_block()},
            EmbeddingWeights{.table = made.refs[0], .positions = positions}),
        name,
        made.units);
    chain_.blocks.back().backward_reads_units = false;
    return made.refs[0];
  }

  void add_attention(int64_t layer) {
    const AttentionTensors of = attention_tensors(config_, layer);
    std::vector<TensorGroup> groups = {of.norm, of.norm_bias};
    append_linear(groups, of.qkv, of.qkv_bias);
    groups.push_back(of.q_norm);
    groups.push_back(of.k_norm);
    append_linear(groups, of.output, of.output_bias);
    const BlockUnits made = units(of.name, groups, options_.frozen);
    const AttentionShape shape{
        .hidden_size = config_.hidden_size,
        .num_heads = config_.num_attention_heads,
        .num_kv_heads = config_.num_key_value_heads,
        .head_dim = config_.head_dim,
        .window = config_.window(layer),
        .attention_dropout = config_.attention_dropout,
        .residual_dropout = options_.residual_dropout,
        .block = next_block()};
    size_t next = 2;
    const AttentionWeights weights{
        .norm = norm(made.refs[0], made.refs[1]),
        .qkv = linear(of.qkv, of.qkv_bias, made.refs, next),
        .q_norm = norm(made.refs[next++], {}),
        .k_norm = norm(made.refs[next++], {}),
        .output = linear(of.output, of.output_bias, made.refs, next)};
    add(std::make_unique<AttentionBlock>(shape, weights, rotary_), of.name, made.units);
  }

  void add_mlp(int64_t layer) {
    const MlpTensors of = mlp_tensors(config_, layer);
    std::vector<TensorGroup> groups = {of.norm, of.norm_bias};
    append_linear(groups, of.inner, of.inner_bias);
    append_linear(groups, of.down, of.down_bias);
    const BlockUnits made = units(of.name, groups, options_.frozen);
    const MlpShape shape{
        .hidden_size = config_.hidden_size,
        .intermediate_size = config_.intermediate_size,
        .gated = family_.gated,
        .activation = activation_of(config_.hidden_act),
        .residual_dropout = options_.residual_dropout,
        .block = next_block()};
    size_t next = 2;
    const MlpWeights weights{
        .norm = norm(made.refs[0], made.refs[1]),
        .inner = linear(of.inner, of.inner_bias, made.refs, next),
        .down = linear(of.down, of.down_bias, made.refs, next)};
    add(std::make_unique<MlpBlock>(shape, weights), of.name, made.units);
  }

  void add_head(const ParamRef& table) {
    const HeadTensors of = head_tensors(config_);
    BlockUnits made = units("lm_head", {of.norm, of.norm_bias, of.weight});
    if (of.weight.empty()) {
      made.refs[2] = table;
      made.units.push_back(chain_.blocks.front().units.front());
    }
    chain_.terminal = std::make_unique<HeadBlock>(
        HeadShape{.chunk_bytes = options_.head_chunk_bytes},
        HeadWeights{.norm = norm(made.refs[0], made.refs[1]), .weight = made.refs[2]});
    chain_.terminal_reads = {{chain_.terminal_index() - 1, 0}};
    chain_.terminal_units = made.units;
  }

  const DecoderConfig& config_;
  const DecoderFamily& family_;
  const DecoderOptions& options_;
  TrainableFilter trainable_;
  std::shared_ptr<RotaryCache> rotary_; // none where positions are learned
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
  const DecoderFamily& family = *config.family;
  const double gain = family.norm == NormKind::kRmsOnePlus ? 0 : 1;
  double output_std = config.initializer_range;
  if (family.scales_output_init) {
    output_std /= std::sqrt(2.0 * static_cast<double>(config.num_hidden_layers));
  }
  const std::string output = fmt::format(".{}.weight", family.names->output);
  const std::string down = fmt::format(".{}.weight", family.names->down);
  initialise(chain, source, seed, [&](const Parameter& parameter) -> std::optional<Initial> {
    if (is_adapter(parameter.name)) {
      return std::nullopt;
    }
    if (parameter.shape.size() > 1) {
      const bool adds = parameter.name.ends_with(output) || parameter.name.ends_with(down);
      return Initial{.std = adds ? output_std : config.initializer_range};
    }
    return Initial{.value = parameter.name.ends_with(".bias") ? 0.0 : gain};
  });
}

} // namespace palimpsest
