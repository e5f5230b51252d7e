#pragma once

// A PEFT adapter's folder, in and out: adapter_config.json and adapter_model.safetensors.
//
//   const PeftFolder folder("my-adapter", linear_layers(config));
//   folder.adapters().layers.at("model.layers.0.self_attn.q_proj").rank;
//   std::span<const std::byte> a = folder.bytes("model.layers.0.self_attn.q_proj.lora_A.weight");
//
//   write_hf_folder("runs/a/adapter", peft_layout(set, layers, {.base_model = "./base"}), fill);
//
// Format: https://huggingface.co/docs/peft (LoraConfig, PeftModel.save_pretrained). Read are LoRA and
// rsLoRA with targets as a list, an expression or all-linear, layers_to_transform, exclude_modules,
// rank_pattern and alpha_pattern. What else changes numbers (DoRA, modules_to_save, biases, ...) is
// refused by name, a key of a PEFT to come too.

#include <palimpsest/core/io/adapter_set.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/io/safetensors.h>

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

inline constexpr std::string_view kPeftConfigName = "adapter_config.json";

class PeftFolder {
 public:
  /// Opens a folder for a model of these linear layers; reads no tensor. UserError where the config
  /// is wrong or names no layer, and for every tensor that is missing, unexpected or of another
  /// shape at once.
  PeftFolder(std::filesystem::path path, std::span<const LinearDeclaration> layers);

  const std::filesystem::path& path() const {
    return path_;
  }
  const AdapterSet& adapters() const {
    return adapters_;
  }
  /// By a parameter's name in the model.
  const StoredTensor& at(std::string_view parameter) const;
  std::span<const std::byte> bytes(std::string_view parameter) const;

 private:
  void compare_with(std::span<const TensorDeclaration> expected) const;

  std::filesystem::path path_;
  AdapterSet adapters_;
  std::optional<SafetensorsFile> file_;
};

/// adapter_config.json for a model of these layers; `file` stands for it in messages.
AdapterSet parse_peft_config(
    std::string_view json,
    const std::string& file,
    std::span<const LinearDeclaration> layers);

/// What adapter_config.json says besides the adapters.
struct PeftModel {
  std::string base_model; // folder or hub id; empty: none
  bool weights_in_out = false; // of the base: linear weights are stored [in, out]
};

std::string write_peft_config(
    const AdapterSet& set,
    std::span<const LinearDeclaration> layers,
    const PeftModel& model);

/// The folder to be written.
HfFolderLayout peft_layout(
    const AdapterSet& set,
    std::span<const LinearDeclaration> layers,
    const PeftModel& model);

/// The model's name of a tensor of an adapter's file.
std::string peft_parameter(std::string_view stored);

} // namespace palimpsest
