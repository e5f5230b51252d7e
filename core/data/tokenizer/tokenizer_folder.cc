#include <palimpsest/core/data/tokenizer/tokenizer_folder.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/tokenizer/component.h>
#include <palimpsest/core/data/tokenizer/word_scanner.h>
#include <palimpsest/core/io/json.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <string_view>

namespace palimpsest {

namespace {

using Json = nlohmann::json;

constexpr std::array<const char*, 4> kRoles{"bos_token", "eos_token", "pad_token", "unk_token"};

// What GPT-2's class takes where nothing is said.
constexpr const char* kGpt2End = "<|endoftext|>";

/// Null where the folder lacks the file.
Json read_json(const std::filesystem::path& path) {
  if (!std::filesystem::exists(path)) {
    return nullptr;
  }
  Json json = parse_json(read_file(path), path.string());
  if (!json.is_object()) {
    throw UserError("{} holds no JSON object", path.string());
  }
  return json;
}

AddedToken added_token(const Component& token, int64_t id) {
  constexpr int64_t kMaxId = int64_t{1} << 22;
  if (id < 0 || id >= kMaxId) {
    throw UserError(
        "{} has the id {}; give a whole number from 0 to {}", token.where(), id, kMaxId - 1);
  }
  return {
      .content = token.string("content"),
      .id = static_cast<int32_t>(id),
      .single_word = token.boolean("single_word", false),
      .lstrip = token.boolean("lstrip", false),
      .rstrip = token.boolean("rstrip", false),
      .normalized = token.boolean("normalized", true),
      .special = token.boolean("special", false)};
}

void read_added(TokenizerFolder& files, const Component& config) {
  const auto known = [&](const AddedToken& token) {
    return std::ranges::any_of(
        files.added, [&](const AddedToken& other) { return other.content == token.content; });
  };
  const Component tokenizer(files.tokenizer, files.file, "");
  if (tokenizer.has("added_tokens")) {
    for (const Component& token : tokenizer.list("added_tokens")) {
      files.added.push_back(added_token(token, token.integer("id")));
    }
  }
  if (!config.has("added_tokens_decoder")) {
    return;
  }
  const Component decoder = config.at("added_tokens_decoder");
  if (!decoder.json().is_object()) {
    config.refuse("added_tokens_decoder", "give an object of ids and tokens");
  }
  for (const auto& entry : decoder.json().items()) {
    int64_t id = -1;
    const std::string& key = entry.key();
    const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
    if (error != std::errc() || end != key.data() + key.size()) {
      throw UserError("{} has the key {}; give ids", decoder.where(), quote(key));
    }
    const AddedToken token = added_token(decoder.at(key), id);
    if (!known(token)) { // the flags of tokenizer.json win, as in the reference library
      files.added.push_back(token);
    }
  }
}

void read_roles(TokenizerFolder& files, const Component& config) {
  for (const std::string role : kRoles) {
    if (!config.has(role) || files.roles.contains(role)) {
      continue;
    }
    const Json& value = config.json().at(role);
    files.roles[role] = value.is_object() ? config.at(role).string("content") : config.string(role);
    files.roles_file = config.file();
  }
}

/// The older form of GPT-2 and of Qwen2 as tokenizer.json.
Json from_vocabulary(const std::filesystem::path& folder, const std::string& tokenizer_class) {
  const std::filesystem::path merges_path = folder / "merges.txt";
  Json json{
      {"model", {{"type", "BPE"}, {"vocab", read_json(folder / "vocab.json")}}},
      {"decoder", {{"type", "ByteLevel"}}}};
  Json merges = Json::array();
  const std::string text = read_file(merges_path);
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    if (!line.empty() && !(begin == 0 && line.starts_with("#version"))) {
      merges.push_back(std::move(line));
    }
    begin = end + 1;
  }
  json["model"]["merges"] = std::move(merges);
  const Json byte_level{
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", tokenizer_class.empty()}};
  json["pre_tokenizer"] = byte_level;
  if (!tokenizer_class.empty()) { // Qwen2
    json["normalizer"] = {{"type", "NFC"}};
    json["pre_tokenizer"] = {
        {"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", kQwen2Regex}}}, {"behavior", "Isolated"}},
          byte_level}}};
  }
  return json;
}

/// Empty for GPT-2's, "Qwen2Tokenizer" for Qwen2's; UserError for another.
std::string class_of_vocabulary(const Component& config) {
  const std::string name =
      config.has("tokenizer_class") ? config.string("tokenizer_class") : "GPT2Tokenizer";
  constexpr std::string_view kFast = "Fast";
  const std::string slow =
      name.ends_with(kFast) ? name.substr(0, name.size() - kFast.size()) : name;
  if (slow == "Qwen2Tokenizer") {
    return slow;
  } else if (slow != "GPT2Tokenizer" && slow != "PreTrainedTokenizer") {
    config.refuse(
        "tokenizer_class",
        "of vocab.json and merges.txt, GPT2Tokenizer and Qwen2Tokenizer are supported; save the "
        "tokenizer with a tokenizer.json");
  }
  return "";
}

} // namespace

TokenizerFolder read_tokenizer_folder(const std::filesystem::path& folder) {
  const std::filesystem::path config_path = folder / "tokenizer_config.json";
  const std::filesystem::path map_path = folder / "special_tokens_map.json";
  const Json config_json = read_json(config_path);
  const Json map_json = read_json(map_path);
  const Json none = Json::object();
  const Component config(config_json.is_null() ? none : config_json, config_path.string(), "");
  const Component map(map_json.is_null() ? none : map_json, map_path.string(), "");

  TokenizerFolder files;
  bool is_plain_gpt2 = false;
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    files.file = (folder / "tokenizer.json").string();
    files.tokenizer = read_json(files.file);
  } else if (
      std::filesystem::exists(folder / "vocab.json") &&
      std::filesystem::exists(folder / "merges.txt")) {
    const std::string tokenizer_class = class_of_vocabulary(config);
    files.file = (folder / "vocab.json").string();
    files.tokenizer = from_vocabulary(folder, tokenizer_class);
    is_plain_gpt2 = tokenizer_class.empty();
  } else if (!std::filesystem::is_directory(folder)) {
    throw UserError("{} is no folder; give one with a tokenizer.json", folder.string());
  } else {
    throw UserError(
        "{} has neither tokenizer.json nor vocab.json and merges.txt{}",
        folder.string(),
        std::filesystem::exists(folder / "tokenizer.model")
            ? "; convert its tokenizer.model with transformers' AutoTokenizer and save_pretrained"
            : "");
  }
  files.roles_file = config.file();
  read_added(files, config);
  read_roles(files, config);
  read_roles(files, map);
  if (is_plain_gpt2 && files.tokenizer.at("model").at("vocab").contains(kGpt2End)) {
    files.roles.try_emplace("bos_token", kGpt2End);
    files.roles.try_emplace("eos_token", kGpt2End);
  }
  if (config.has("add_bos_token")) {
    files.add_bos = config.boolean("add_bos_token", false);
  }
  if (config.has("add_eos_token")) {
    files.add_eos = config.boolean("add_eos_token", false);
  }
  return files;
}

} // namespace palimpsest
