#pragma once

// A Hugging Face model folder, in and out: config.json and model.safetensors, or shards with an
// index.
//
//   HfFolder folder("Llama-3.2-1B");
//   DecoderConfig config = parse_decoder_config(folder.config_text(), folder.config_path());
//   settle_folder(folder, config);                       // decoder_tensors.h
//   folder.compare_with(decoder_tensors(config));
//   std::span<const std::byte> bytes = folder.bytes("model.norm.weight");
//
//   write_hf_folder("run/model", layout_like(folder), fill, Existing::kReplace);
//
// Opening checks index, shards and headers and lists every fault at once; no tensor is read before
// it is asked for. The small files are read then too, so a folder that is moved or deleted while the
// model trains is not missed when it is written.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/io/safetensors.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

inline constexpr std::string_view kEmbeddingName = "model.embed_tokens.weight";
inline constexpr std::string_view kHeadName = "lm_head.weight";

class HfFolder {
 public:
  /// One tensor, under the name that its file has for it, and that file (an index into files()).
  struct Entry {
    size_t file = 0;
    StoredTensor tensor;
  };

  explicit HfFolder(std::filesystem::path path);

  const std::filesystem::path& path() const {
    return path_;
  }
  /// Byte for byte.
  const std::string& config_text() const {
    return config_text_;
  }
  /// Tokenizer, generation config and chat templates (companions.h): bytes by name.
  const std::map<std::string, std::string>& small_files() const {
    return small_files_;
  }
  /// For messages.
  std::string config_path() const {
    return (path_ / "config.json").string();
  }
  /// Whether there is an index; a single model.safetensors has none.
  bool sharded() const {
    return sharded_;
  }
  const std::vector<std::unique_ptr<SafetensorsFile>>& files() const {
    return files_;
  }
  /// By the model's name. Buffers that a model computes itself and old files still carry (names
  /// ending in `rotary_emb.inv_freq`, `.attn.bias` and `.attn.masked_bias`) are left out.
  const std::map<std::string, Entry, std::less<>>& tensors() const {
    return tensors_;
  }
  /// UserError where there is no such tensor.
  const StoredTensor& at(std::string_view name) const;
  /// The tensor's bytes in the mapped file, unaligned in some files.
  std::span<const std::byte> bytes(std::string_view name) const;
  /// The tensor's bytes will not be needed soon.
  void forget(std::string_view name) const;

  /// Where no name begins with `base` ("model."), the folder was saved from the bare model: all names
  /// but the head's get it.
  void settle_names(std::string_view base);

  /// Brings embedding and head into one form. Tied: the folder may hold the embedding, the head or
  /// both with equal bytes, and afterwards tensors() holds the embedding only; both with different
  /// values is a UserError, since training would silently drop one of them. Not tied: nothing to
  /// do.
  void settle_head(bool tie_word_embeddings, std::string_view embedding = kEmbeddingName);

  /// UserError listing at once every tensor that is missing, unexpected, or of another shape.
  /// Dtypes are not compared, but one that is not F32, F16 or BF16 is listed: it is no plain
  /// weight.
  void compare_with(std::span<const TensorDeclaration> expected) const;

 private:
  void open_single();
  void open_sharded();
  const Entry& entry(std::string_view name) const;

  std::filesystem::path path_;
  std::string config_text_;
  std::map<std::string, std::string> small_files_;
  bool sharded_ = false;
  std::vector<std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, Entry, std::less<>> tensors_;
};

/// One weight file to be written.
struct HfFileLayout {
  std::string name; // "model.safetensors", "model-00001-of-00004.safetensors"
  std::vector<TensorDeclaration> tensors;
  std::map<std::string, std::string> metadata = {{"format", "pt"}};
};

/// A folder to be written.
struct HfFolderLayout {
  std::string config_text;
  std::vector<HfFileLayout> files;
  bool sharded = false; // write model.safetensors.index.json
  /// Tokenizer, generation config and chat templates: bytes by name, relative to the folder.
  std::map<std::string, std::string> small_files = {};
  std::string config_name = "config.json";
};

/// The layout that gives `source` back: same files, tensors with their files' names, dtypes and
/// config.
HfFolderLayout layout_like(const HfFolder& source);

/// The layout of a new model: one file, or several of at most `max_file_bytes` (at least one tensor
/// each).
HfFolderLayout new_layout(
    std::string config_text,
    std::span<const TensorDeclaration> tensors,
    int64_t max_file_bytes = int64_t{5'000'000'000});

/// Fills `bytes` with the tensor's values in its dtype, row-major, little-endian.
using TensorFiller = std::function<void(const StoredTensor& tensor, std::span<std::byte> bytes)>;

/// Writes the folder under a temporary name and renames it at the end. Tensors are asked for one at
/// a time, file after file, into one buffer of the largest tensor's size. EnvironmentError with path
/// and reason where the disk refuses; nothing remains then.
void write_hf_folder(
    const std::filesystem::path& out,
    const HfFolderLayout& layout,
    const TensorFiller& fill,
    Existing existing = Existing::kRefuse);

} // namespace palimpsest
