#pragma once

// A checkpoint's manifest: text and back, checked, and put together from the ranks' parts.
//
//   CheckpointManifest manifest = read_manifest("runs/a/step-00001000/manifest.textproto");
//   manifest.info().step();                                     // 1000
//   find_state(manifest, "model.norm.weight", "moment.0");      // null where there is none
//
// A manifest that these functions return can be followed without another check: names are plain,
// numbers are in range, and the pieces of every state cover it once, in order.

#include <palimpsest/core/io/manifest.pb.h>
#include <palimpsest/core/io/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

inline constexpr std::string_view kManifestName = "manifest.textproto";
inline constexpr std::string_view kRunConfigName = "config.yaml";
inline constexpr std::string_view kModelFolderName = "model"; // config.json, tokenizer: no weights
inline constexpr int64_t kManifestVersion = 1;
inline constexpr int64_t kChecksumBlock = int64_t{1} << 20; // bytes

/// What a state is called. Values that the update changes are "master" where the parameters have
/// one, else "parameter".
inline constexpr std::string_view kParameterState = "parameter";
inline constexpr std::string_view kMasterState = "master";
/// "moment.0"
std::string moment_state(size_t index);

/// One state of one parameter, whole.
struct StateDeclaration : TensorDeclaration {
  std::string state;
  bool trainable = true;
  bool operator==(const StateDeclaration&) const = default;
};

/// "model.norm.weight (moment.0)", for messages.
std::string describe_state(std::string_view tensor, std::string_view state);

StateDeclaration declaration_of(const CheckpointManifest::Tensor& tensor);

/// Parses and checks; `name` stands for the file. UserError: the place of a syntax error, or all
/// contradictions at once (at most 20 are printed).
CheckpointManifest parse_manifest(std::string_view text, const std::string& name);
/// The text that parse_manifest reads, for people: a list on one line, numbers without quotes.
std::string manifest_text(const CheckpointManifest& manifest);

/// A manifest's file: the text and a last line with its checksum. Writing is atomic.
CheckpointManifest read_manifest(const std::filesystem::path& file);
void write_manifest(const std::filesystem::path& file, const CheckpointManifest& manifest);

/// A rank's part, written like a manifest: nothing is checked before all are merged.
CheckpointManifest read_part(const std::filesystem::path& file);

/// One manifest of all ranks' parts, in order of rank: rank 0's with the others' files and pieces
/// added, tensors by name. InternalError where parts belong to different runs or steps, or a state
/// is covered incompletely or twice, naming rank, tensor and elements.
CheckpointManifest merge_parts(std::span<const CheckpointManifest> parts);

/// Null where there is no such state. Tensors of a checked manifest are sorted by (name, state).
const CheckpointManifest::Tensor* find_state(
    const CheckpointManifest& manifest,
    std::string_view tensor,
    std::string_view state);

/// XXH3 (64 bits) of some bytes.
uint64_t checksum(std::span<const std::byte> bytes);

} // namespace palimpsest
