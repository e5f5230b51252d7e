#include <palimpsest/core/io/hf_folder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/companions.h>
#include <palimpsest/core/io/json.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

namespace palimpsest {
namespace fs = std::filesystem;
namespace {

constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kSingleName = "model.safetensors";
constexpr std::string_view kIndexName = "model.safetensors.index.json";
constexpr int64_t kMaxJsonBytes = int64_t{256} << 20;

/// Buffers that the model computes itself; old files still carry them.
bool is_ignored(std::string_view name) {
  return name.ends_with("rotary_emb.inv_freq") || name.ends_with(".attn.bias") ||
      name.ends_with(".attn.masked_bias"); // GPT-2's causal mask
}

[[noreturn]] void throw_faults(const std::string& first, const std::vector<std::string>& faults) {
  throw UserError("{}\n  {}", first, fmt::join(faults, "\n  "));
}

/// weight_map of the index: tensor -> file name. What is wrong with single entries is added to
/// `faults`.
std::map<std::string, std::string> read_index(
    const fs::path& path,
    std::vector<std::string>& faults) {
  const nlohmann::json index = parse_json(read_file(path, kMaxJsonBytes), path.string());
  if (!index.is_object() || !index.contains("weight_map") || !index["weight_map"].is_object()) {
    throw UserError("{}: weight_map must be an object of tensor names and files", path.string());
  }
  std::map<std::string, std::string> weight_map;
  for (const auto& [tensor, file] : index["weight_map"].items()) {
    if (!file.is_string()) {
      faults.push_back(fmt::format("the index gives no file name for tensor {}", quote(tensor)));
      continue;
    }
    const std::string name = file.get<std::string>();
    if (name.empty() || name == "." || name == ".." || name.find('/') != std::string::npos ||
        name.find('\0') != std::string::npos) {
      faults.push_back(fmt::format(
          "the index places tensor {} in {}, which is no plain file name of this folder",
          quote(tensor),
          quote(name)));
      continue;
    }
    weight_map.emplace(tensor, name);
  }
  return weight_map;
}

/// Where head and embedding are equal, one of them is enough.
bool equal_tensors(const HfFolder& folder, std::string_view left, std::string_view right) {
  const StoredTensor& a = folder.at(left);
  const StoredTensor& b = folder.at(right);
  const auto bytes = folder.bytes(left);
  return a.dtype == b.dtype && a.shape == b.shape &&
      std::memcmp(bytes.data(), folder.bytes(right).data(), bytes.size()) == 0;
}

void write_small_file(const fs::path& path, const std::string& text) {
  std::error_code error;
  fs::create_directories(path.parent_path(), error);
  if (error) {
    throw EnvironmentError("cannot write {}: {}", path.string(), error.message());
  }
  write_file_atomically(path, text);
}

/// As transformers writes it: sorted keys, two spaces.
std::string encode_index(const HfFolderLayout& layout, int64_t parameters, int64_t bytes) {
  nlohmann::json weight_map = nlohmann::json::object();
  for (const HfFileLayout& file : layout.files) {
    for (const TensorDeclaration& tensor : file.tensors) {
      weight_map[tensor.name] = file.name;
    }
  }
  const nlohmann::json index = {
      {"metadata", {{"total_parameters", parameters}, {"total_size", bytes}}},
      {"weight_map", weight_map}};
  return index.dump(2) + "\n";
}

int64_t stored_bytes(const TensorDeclaration& tensor) {
  return tensor.elements() * bits_per_element(tensor.dtype) / 8;
}

} // namespace

HfFolder::HfFolder(fs::path path) : path_(std::move(path)) {
  std::error_code error;
  if (!fs::is_directory(path_, error)) {
    throw UserError("{} is not a folder; give a Hugging Face model folder", path_.string());
  }
  config_text_ = read_file(path_ / kConfigName, kMaxJsonBytes);
  // Both: transformers takes the single file, too.
  if (fs::exists(path_ / kSingleName, error)) {
    open_single();
  } else if (fs::exists(path_ / kIndexName, error)) {
    sharded_ = true;
    open_sharded();
  } else {
    throw UserError(
        "{} holds neither {} nor {}; weights in other formats must be converted to safetensors",
        path_.string(),
        kSingleName,
        kIndexName);
  }
  small_files_ = read_companions(path_);
}

void HfFolder::open_single() {
  files_.push_back(std::make_unique<SafetensorsFile>(path_ / kSingleName));
  for (const StoredTensor& tensor : files_[0]->tensors()) {
    if (!is_ignored(tensor.name)) {
      tensors_.emplace(tensor.name, Entry{0, tensor});
    }
  }
}

void HfFolder::open_sharded() {
  std::vector<std::string> faults;
  const std::map<std::string, std::string> weight_map = read_index(path_ / kIndexName, faults);
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) {
    names.insert(file);
  }
  std::set<std::string> unreadable;
  for (const std::string& name : names) {
    try {
      files_.push_back(std::make_unique<SafetensorsFile>(path_ / name));
    } catch (const Error& fault) {
      faults.push_back(fault.what());
      unreadable.insert(name);
      continue;
    }
    for (const StoredTensor& tensor : files_.back()->tensors()) {
      const auto mapped = weight_map.find(tensor.name);
      if (mapped == weight_map.end() && !is_ignored(tensor.name)) {
        faults.push_back(
            fmt::format("{} holds tensor {}, which the index lacks", name, quote(tensor.name)));
      } else if (mapped != weight_map.end() && mapped->second != name) {
        faults.push_back(fmt::format(
            "{} holds tensor {}, which the index places in {}",
            name,
            quote(tensor.name),
            quote(mapped->second)));
      } else if (!is_ignored(tensor.name)) {
        tensors_.emplace(tensor.name, Entry{files_.size() - 1, tensor});
      }
    }
  }
  for (const auto& [tensor, file] : weight_map) {
    if (!tensors_.contains(tensor) && !unreadable.contains(file) && !is_ignored(tensor)) {
      faults.push_back(fmt::format(
          "the index places tensor {} in {}, which lacks it", quote(tensor), quote(file)));
    }
  }
  if (!faults.empty()) {
    throw_faults(
        fmt::format(
            "{}: the index and the weight files do not fit together ({} faults); download the "
            "folder again",
            (path_ / kIndexName).string(),
            faults.size()),
        faults);
  }
}

const HfFolder::Entry& HfFolder::entry(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw UserError("{}: there is no tensor {}", path_.string(), quote(name));
  }
  return found->second;
}

const StoredTensor& HfFolder::at(std::string_view name) const {
  return entry(name).tensor;
}

std::span<const std::byte> HfFolder::bytes(std::string_view name) const {
  const Entry& found = entry(name);
  return files_[found.file]->bytes(found.tensor);
}

void HfFolder::forget(std::string_view name) const {
  const Entry& found = entry(name);
  files_[found.file]->forget(found.tensor);
}

void HfFolder::settle_names(std::string_view base) {
  if (std::ranges::any_of(
          tensors_, [&](const auto& entry) { return entry.first.starts_with(base); })) {
    return;
  }
  std::map<std::string, Entry, std::less<>> named;
  for (auto& [name, entry] : tensors_) {
    named.emplace(name == kHeadName ? name : fmt::format("{}{}", base, name), std::move(entry));
  }
  tensors_ = std::move(named);
}

void HfFolder::settle_head(bool tie_word_embeddings, std::string_view embedding) {
  if (!tie_word_embeddings || !tensors_.contains(kHeadName)) {
    return;
  }
  const bool has_embedding = tensors_.contains(embedding);
  if (has_embedding && !equal_tensors(*this, kHeadName, embedding)) {
    throw UserError(
        "{}: config.json ties {} to {}, but the two differ; set tie_word_embeddings to false to "
        "train them apart, or remove the wrong one",
        path_.string(),
        kHeadName,
        embedding);
  }
  auto head = tensors_.extract(tensors_.find(kHeadName));
  if (!has_embedding) {
    head.key() = embedding;
    head.mapped().tensor.name = embedding;
    tensors_.insert(std::move(head));
  }
}

void HfFolder::compare_with(std::span<const TensorDeclaration> expected) const {
  std::vector<std::string> faults;
  std::set<std::string_view> names;
  for (const TensorDeclaration& tensor : expected) {
    names.insert(tensor.name);
    const auto found = tensors_.find(tensor.name);
    if (found == tensors_.end()) {
      const bool tied_elsewhere = tensor.name == kHeadName && tensors_.contains(kEmbeddingName);
      faults.push_back(fmt::format(
          "missing: {} {}{}",
          tensor.name,
          format_shape(tensor.shape),
          tied_elsewhere ? "; set tie_word_embeddings in config.json if it is the embedding's"
                         : ""));
    } else if (found->second.tensor.shape != tensor.shape) {
      faults.push_back(fmt::format(
          "wrong shape: {} is {}, config.json asks for {}",
          tensor.name,
          format_shape(found->second.tensor.shape),
          format_shape(tensor.shape)));
    }
  }
  for (const auto& [name, found] : tensors_) {
    const StoredDtype dtype = found.tensor.dtype;
    if (!names.contains(name)) {
      faults.push_back(
          fmt::format("unexpected: {} {}", quote(name), format_shape(found.tensor.shape)));
    } else if (
        dtype != StoredDtype::F32 && dtype != StoredDtype::F16 && dtype != StoredDtype::BF16) {
      faults.push_back(fmt::format("dtype: {} is {}, not F32, F16 or BF16", name, name_of(dtype)));
    }
  }
  if (!faults.empty()) {
    throw_faults(
        fmt::format(
            "{}: the weights are not those of config.json ({} faults)",
            path_.string(),
            faults.size()),
        faults);
  }
}

HfFolderLayout layout_like(const HfFolder& source) {
  HfFolderLayout layout{source.config_text(), {}, source.sharded(), source.small_files()};
  for (const auto& file : source.files()) {
    layout.files.push_back({file->path().filename().string(), {}, file->metadata()});
    layout.files.back().metadata.emplace("format", "pt");
  }
  for (const auto& [name, entry] : source.tensors()) {
    layout.files[entry.file].tensors.push_back(entry.tensor);
  }
  // A file that held nothing but the head of a tied model.
  std::erase_if(layout.files, [](const HfFileLayout& file) { return file.tensors.empty(); });
  return layout;
}

HfFolderLayout new_layout(
    std::string config_text,
    std::span<const TensorDeclaration> tensors,
    int64_t max_file_bytes) {
  HfFolderLayout layout{std::move(config_text), {HfFileLayout{}}, false, {}};
  int64_t bytes = 0;
  for (const TensorDeclaration& tensor : tensors) {
    const int64_t more = stored_bytes(tensor);
    if (!layout.files.back().tensors.empty() && bytes + more > max_file_bytes) {
      layout.files.emplace_back();
      bytes = 0;
    }
    bytes += more;
    layout.files.back().tensors.push_back(tensor);
  }
  const size_t count = layout.files.size();
  layout.sharded = count > 1;
  for (size_t i = 0; i < count; ++i) {
    layout.files[i].name = layout.sharded
        ? fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, count)
        : std::string(kSingleName);
  }
  return layout;
}

void write_hf_folder(
    const fs::path& out,
    const HfFolderLayout& layout,
    const TensorFiller& fill,
    Existing existing) {
  AtomicFolder folder(out, existing);
  for (const auto& [name, text] : layout.small_files) {
    write_small_file(folder.path() / name, text);
  }
  write_file_atomically(folder.path() / layout.config_name, layout.config_text);
  int64_t largest = 0;
  int64_t parameters = 0;
  int64_t bytes = 0;
  for (const HfFileLayout& file : layout.files) {
    for (const TensorDeclaration& tensor : file.tensors) {
      largest = std::max(largest, stored_bytes(tensor));
      parameters += tensor.elements();
      bytes += stored_bytes(tensor);
    }
  }
  if (layout.sharded) {
    write_file_atomically(folder.path() / kIndexName, encode_index(layout, parameters, bytes));
  }
  const auto buffer = std::make_unique_for_overwrite<std::byte[]>(static_cast<size_t>(largest));
  for (const HfFileLayout& file : layout.files) {
    SafetensorsWriter writer(folder.path() / file.name, file.tensors, file.metadata);
    for (const StoredTensor& tensor : writer.tensors()) {
      const std::span piece(buffer.get(), static_cast<size_t>(tensor.bytes()));
      fill(tensor, piece);
      writer.write(tensor.name, piece);
    }
    writer.commit();
  }
  folder.commit();
}

} // namespace palimpsest
