#pragma once

// The model that a config names: built, filled, exported.
//
//   Model model(config);
//   model.fill(seed, source);                     // its folder's weights, or the family's initialisation
//   model.write("runs/a/model", source);          // a Hugging Face folder, or a PEFT one of adapters

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/io/peft_folder.h>
#include <palimpsest/core/models/models.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

class Model {
 public:
  /// UserError where the folder, the keys or their combination name no model that this version
  /// trains. Of a run that goes on from `checkpoint`, what that keeps of the model's folder serves
  /// where the folder is gone; notes() says so then, and there is nothing to fill() from.
  explicit Model(
      const RunConfig& config,
      const std::optional<std::filesystem::path>& checkpoint = std::nullopt);

  Chain& chain() {
    return chain_;
  }
  const Chain& chain() const {
    return chain_;
  }
  const std::vector<std::string>& notes() const {
    return notes_;
  }
  /// "llama, 31,990,272 parameters, 24 layers, bf16 with fp32 master".
  std::string description() const;
  /// What is left of it where nothing is trained: "llama, 31,990,272 parameters, 24 layers, bf16".
  std::string weights_description() const;

  /// Equal for equal models: the description, and a hash of what config.json says.
  std::string fingerprint() const;

  /// What samples must be like: token ids below the vocabulary, at most so many positions; or
  /// features.
  bool reads_tokens() const {
    return family_ != "mlp";
  }
  /// Of a model that reads tokens.
  const DecoderConfig& decoder() const {
    return settings_.decoder;
  }
  const DecoderOptions& decoder_options() const {
    return settings_.decoder_options;
  }
  int64_t vocabulary_size() const {
    return reads_tokens() ? settings_.decoder.vocab_size : 0;
  }
  int64_t max_positions() const {
    return settings_.decoder.max_position_embeddings;
  }
  /// UserError for samples of more positions than the model is made for; a dynamic rotary embedding
  /// stretches to any length.
  void check_length(int64_t positions) const;
  int64_t input_size() const {
    return reads_tokens() ? 0 : settings_.mlp.widths.front();
  }
  int64_t output_size() const {
    return reads_tokens() ? 0 : settings_.mlp.widths.back();
  }

  /// Logits [B, T, V] of token ids [B, T], by the parameters as they are now.
  at::Tensor logits(const at::Tensor& ids) const;

  /// Its folder's weights, adapters left out; empty where there is no folder. Outlived by the model.
  FillValues originals() const;

  /// Every parameter: from the folder, or initialised from `seed`.
  void fill(uint64_t seed, const UnitSource& source);

  /// Whether adapters are trained instead of the weights; write() makes a PEFT folder of them then.
  bool has_adapters() const {
    return !settings_.decoder_options.adapters.layers.empty();
  }

  /// The whole model's folder, without the values.
  HfFolderLayout layout() const;
  /// Where there are adapters: their folder's.
  HfFolderLayout adapter_layout() const;
  /// What a checkpoint keeps: the whole model's, and adapter_config.json.
  HfFolderLayout checkpoint_layout() const;

  /// A folder that transformers loads, or PEFT where there are adapters: a folder's own config, tokenizer, dtypes and files where the
  /// weights came from one; with the tokenizer of data.tokenizer, if it is given. A chain that is no decoder is written as its weights alone.
  /// EnvironmentError, and nothing is changed, where a trained weight is not finite.
  void write(const std::filesystem::path& out, const UnitSource& source) const;

 private:
  TensorFiller with_originals(TensorFiller held) const;

  std::string family_;
  std::string compute_; // "bf16"
  std::string masters_; // " with fp32 master"
  std::string frozen_; // ", frozen weights in nf4"
  ModelSettings settings_;
  ModelFamily family_functions_;
  std::optional<HfFolder> folder_;
  std::optional<PeftFolder> adapter_folder_; // lora.adapter
  std::string base_model_; // as adapter_config.json names it
  std::optional<HfFolderLayout> kept_; // by a checkpoint, where the folder is gone
  std::map<std::string, std::string> tokenizer_; // data.tokenizer's files by name
  std::vector<std::string> notes_;
  Chain chain_;
};

} // namespace palimpsest
