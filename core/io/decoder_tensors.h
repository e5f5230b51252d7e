#pragma once

// The weights of a decoder by block: names, shapes and dtype, as the model folder holds them and as
// the blocks use them.
//
//   const AttentionTensors attention = attention_tensors(config, /*layer=*/0);
//   attention.qkv.front().name;      // "model.layers.0.self_attn.q_proj.weight"
//   for (const TensorDeclaration& tensor : decoder_tensors(config)) { ... }
//
// A group holds neighbours that are one product; it is empty where the family has no such weight.
// Linear weights are [out, in], or [in, out] in a family that stores them so.

#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/hf_folder.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

using TensorGroup = std::vector<TensorDeclaration>;

struct AttentionTensors {
  std::string name; // "model.layers.0.self_attn"
  TensorGroup norm;
  TensorGroup norm_bias;
  TensorGroup qkv;
  TensorGroup qkv_bias;
  TensorGroup q_norm; // of one head
  TensorGroup k_norm;
  TensorGroup output;
  TensorGroup output_bias;
};

struct MlpTensors {
  std::string name; // "model.layers.0.mlp"
  TensorGroup norm;
  TensorGroup norm_bias;
  TensorGroup inner; // gate and up, or one
  TensorGroup inner_bias;
  TensorGroup down;
  TensorGroup down_bias;
};

struct HeadTensors {
  TensorGroup norm;
  TensorGroup norm_bias;
  TensorGroup weight; // empty: the embedding's
};

/// "model.layers.0".
std::string layer_name(const DecoderConfig& config, int64_t layer);

TensorDeclaration embedding_tensor(const DecoderConfig& config);
/// One row a position; empty for a rotary embedding.
TensorGroup position_tensor(const DecoderConfig& config);
AttentionTensors attention_tensors(const DecoderConfig& config, int64_t layer);
MlpTensors mlp_tensors(const DecoderConfig& config, int64_t layer);
HeadTensors head_tensors(const DecoderConfig& config);

/// All of them, in the order of the model. A tied model has no lm_head.weight.
std::vector<TensorDeclaration> decoder_tensors(const DecoderConfig& config);

/// A linear layer of attention or feed-forward; its weight is NAME.weight.
struct LinearDeclaration {
  std::string name;
  int64_t outputs = 0;
  int64_t inputs = 0;
};
LinearDeclaration linear_layer(const DecoderConfig& config, const TensorDeclaration& weight);
/// All of them, in the order of the model.
std::vector<LinearDeclaration> linear_layers(const DecoderConfig& config);

/// Brings the names of a folder's tensors into those of decoder_tensors(): HfFolder::settle_names and
/// settle_head.
void settle_folder(HfFolder& folder, const DecoderConfig& config);

/// The names that a model may have for a tensor of its folder: the tensor's own; with the base that
/// files of the bare model leave off; the embedding's for a tied head.
std::vector<std::string> model_names(std::string_view stored);

/// Parameters of one decoder, tied ones once.
int64_t parameter_count(const DecoderConfig& config);

} // namespace palimpsest
