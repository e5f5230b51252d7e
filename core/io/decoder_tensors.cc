#include <palimpsest/core/io/decoder_tensors.h>

#include <fmt/format.h>

#include <initializer_list>
#include <utility>

namespace palimpsest {
namespace {

class Naming {
 public:
  explicit Naming(const DecoderConfig& config) : config_(config), family_(*config.family) {}

  TensorDeclaration weight(const std::string& name, std::vector<int64_t> shape) const {
    return {name + ".weight", config_.dtype, std::move(shape)};
  }
  TensorDeclaration bias(const std::string& name, int64_t size) const {
    return {name + ".bias", config_.dtype, {size}};
  }

  TensorGroup norm(const std::string& name, int64_t width) const {
    return {weight(name, {width})};
  }
  /// Empty for a norm without one.
  TensorGroup norm_bias(const std::string& name, int64_t width) const {
    return family_.norm == NormKind::kLayer ? TensorGroup{bias(name, width)} : TensorGroup{};
  }

  /// Linear layers that are one product: their names, with outputs.
  using Layers = std::vector<std::pair<std::string, int64_t>>;
  TensorGroup weights(const Layers& layers, int64_t inputs) const {
    TensorGroup group;
    for (const auto& [name, outputs] : layers) {
      group.push_back(
          family_.weights_in_out ? weight(name, {inputs, outputs})
                                 : weight(name, {outputs, inputs}));
    }
    return group;
  }
  TensorGroup biases(const Layers& layers, bool present) const {
    TensorGroup group;
    for (const auto& [name, outputs] : layers) {
      if (present) {
        group.push_back(bias(name, outputs));
      }
    }
    return group;
  }

 private:
  const DecoderConfig& config_;
  const DecoderFamily& family_;
};

void append(std::vector<TensorDeclaration>& all, std::initializer_list<TensorGroup> groups) {
  for (const TensorGroup& group : groups) {
    all.insert(all.end(), group.begin(), group.end());
  }
}

} // namespace

std::string layer_name(const DecoderConfig& config, int64_t layer) {
  const DecoderNames& names = *config.family->names;
  return fmt::format("{}{}.{}", names.base, names.layers, layer);
}

TensorDeclaration embedding_tensor(const DecoderConfig& config) {
  const DecoderNames& names = *config.family->names;
  return Naming(config).weight(
      fmt::format("{}{}", names.base, names.embedding), {config.vocab_size, config.hidden_size});
}

TensorGroup position_tensor(const DecoderConfig& config) {
  const DecoderNames& names = *config.family->names;
  if (config.family->rotary) {
    return {};
  }
  return {Naming(config).weight(
      fmt::format("{}{}", names.base, names.positions),
      {config.max_position_embeddings, config.hidden_size})};
}

AttentionTensors attention_tensors(const DecoderConfig& config, int64_t layer) {
  const Naming naming(config);
  const DecoderNames& names = *config.family->names;
  const std::string of_layer = layer_name(config, layer);
  const std::string name = fmt::format("{}.{}", of_layer, names.attention);
  const std::string norm = fmt::format("{}.{}", of_layer, names.attention_norm);
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  Naming::Layers qkv;
  for (const std::string_view part : names.qkv) {
    const int64_t outputs = names.qkv.size() == 1 ? q_width + 2 * kv_width
        : qkv.empty()                             ? q_width
                                                  : kv_width;
    qkv.emplace_back(fmt::format("{}.{}", name, part), outputs);
  }
  const Naming::Layers output = {{fmt::format("{}.{}", name, names.output), config.hidden_size}};
  const bool heads = config.family->head_norms;
  return {
      .name = name,
      .norm = naming.norm(norm, config.hidden_size),
      .norm_bias = naming.norm_bias(norm, config.hidden_size),
      .qkv = naming.weights(qkv, config.hidden_size),
      .qkv_bias = naming.biases(qkv, config.qkv_bias),
      .q_norm = heads ? naming.norm(name + ".q_norm", config.head_dim) : TensorGroup{},
      .k_norm = heads ? naming.norm(name + ".k_norm", config.head_dim) : TensorGroup{},
      .output = naming.weights(output, q_width),
      .output_bias = naming.biases(output, config.output_bias)};
}

MlpTensors mlp_tensors(const DecoderConfig& config, int64_t layer) {
  const Naming naming(config);
  const DecoderNames& names = *config.family->names;
  const std::string of_layer = layer_name(config, layer);
  const std::string name = fmt::format("{}.{}", of_layer, names.mlp);
  const std::string norm = fmt::format("{}.{}", of_layer, names.mlp_norm);
  Naming::Layers inner;
  for (const std::string_view part : names.inner) {
    inner.emplace_back(fmt::format("{}.{}", name, part), config.intermediate_size);
  }
  const Naming::Layers down = {{fmt::format("{}.{}", name, names.down), config.hidden_size}};
  return {
      .name = name,
      .norm = naming.norm(norm, config.hidden_size),
      .norm_bias = naming.norm_bias(norm, config.hidden_size),
      .inner = naming.weights(inner, config.hidden_size),
      .inner_bias = naming.biases(inner, config.mlp_bias),
      .down = naming.weights(down, config.intermediate_size),
      .down_bias = naming.biases(down, config.mlp_bias)};
}

HeadTensors head_tensors(const DecoderConfig& config) {
  const Naming naming(config);
  const DecoderNames& names = *config.family->names;
  const std::string norm = fmt::format("{}{}", names.base, names.final_norm);
  HeadTensors head{
      .norm = naming.norm(norm, config.hidden_size),
      .norm_bias = naming.norm_bias(norm, config.hidden_size),
      .weight = {}};
  if (!config.tie_word_embeddings) {
    head.weight = {{std::string(kHeadName), config.dtype, {config.vocab_size, config.hidden_size}}};
  }
  return head;
}

std::vector<TensorDeclaration> decoder_tensors(const DecoderConfig& config) {
  std::vector<TensorDeclaration> all = {embedding_tensor(config)};
  append(all, {position_tensor(config)});
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const AttentionTensors a = attention_tensors(config, layer);
    append(
        all, {a.norm, a.norm_bias, a.qkv, a.qkv_bias, a.q_norm, a.k_norm, a.output, a.output_bias});
    const MlpTensors m = mlp_tensors(config, layer);
    append(all, {m.norm, m.norm_bias, m.inner, m.inner_bias, m.down, m.down_bias});
  }
  const HeadTensors head = head_tensors(config);
  append(all, {head.norm, head.norm_bias, head.weight});
  return all;
}

LinearDeclaration linear_layer(const DecoderConfig& config, const TensorDeclaration& weight) {
  constexpr std::string_view kWeight = ".weight";
  const bool in_out = config.family->weights_in_out;
  return {
      .name = weight.name.substr(0, weight.name.size() - kWeight.size()),
      .outputs = weight.shape[in_out ? 1 : 0],
      .inputs = weight.shape[in_out ? 0 : 1]};
}

std::vector<LinearDeclaration> linear_layers(const DecoderConfig& config) {
  std::vector<LinearDeclaration> layers;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const AttentionTensors a = attention_tensors(config, layer);
    const MlpTensors m = mlp_tensors(config, layer);
    std::vector<TensorDeclaration> weights;
    append(weights, {a.qkv, a.output, m.inner, m.down});
    for (const TensorDeclaration& weight : weights) {
      layers.push_back(linear_layer(config, weight));
    }
  }
  return layers;
}

void settle_folder(HfFolder& folder, const DecoderConfig& config) {
  folder.settle_names(config.family->names->base);
  folder.settle_head(config.tie_word_embeddings, embedding_tensor(config).name);
}

std::vector<std::string> model_names(std::string_view stored) {
  std::vector<std::string> names = {std::string(stored)};
  for (const DecoderFamily& family : decoder_families()) {
    const DecoderNames& of = *family.names;
    names.push_back(
        stored == kHeadName ? fmt::format("{}{}.weight", of.base, of.embedding)
                            : fmt::format("{}{}", of.base, stored));
  }
  return names;
}

int64_t parameter_count(const DecoderConfig& config) {
  int64_t count = 0;
  for (const TensorDeclaration& tensor : decoder_tensors(config)) {
    count += tensor.elements();
  }
  return count;
}

} // namespace palimpsest
