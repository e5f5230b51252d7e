#include <palimpsest/launcher/compose/generation_text.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/chat/chat_template.h>
#include <palimpsest/core/data/text_tools.h>
#include <palimpsest/core/data/tokenizer/byte_alphabet.h>
#include <palimpsest/core/data/tokenizer/utf8.h>
#include <palimpsest/core/io/json.h>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kBytes = 256;

/// Tokens that are bytes.
Decoder byte_decoder() {
  const nlohmann::json byte_level = {{"type", "ByteLevel"}};
  std::vector<std::string> tokens;
  for (int64_t byte = 0; byte < kBytes; ++byte) {
    tokens.push_back(token_of_bytes(std::string(1, static_cast<char>(byte))));
  }
  return Decoder(Component(byte_level, "bytes", "decoder"), tokens);
}

std::vector<int32_t> not_empty(std::vector<int32_t> ids) {
  if (ids.empty()) {
    throw UserError("the prompt is empty: give at least one token to go on from");
  }
  return ids;
}

/// eos_token_id of a file: a number or a list of them. Nothing where file or key is missing.
std::set<int32_t> end_ids_of(const fs::path& file) {
  if (!fs::exists(file)) {
    return {};
  }
  const nlohmann::json config = parse_json(read_file(file), file.string());
  const auto given = config.find("eos_token_id");
  if (given == config.end() || given->is_null()) {
    return {};
  }
  const nlohmann::json ids = given->is_array() ? *given : nlohmann::json::array({*given});
  std::set<int32_t> result;
  for (const nlohmann::json& id : ids) {
    if (!id.is_number_integer()) {
      throw UserError(
          "{}: eos_token_id is {}, but must be a token's number or a list of them",
          file.string(),
          quote(given->dump()));
    }
    result.insert(id.get<int32_t>());
  }
  return result;
}

} // namespace

std::string GeneratedText::push(int32_t id) {
  if (stopped_) {
    return "";
  }
  hold(stream_.push(id));
  return release(false);
}

std::string GeneratedText::finish() {
  if (stopped_) {
    return "";
  }
  hold(stream_.finish());
  return release(true);
}

void GeneratedText::hold(std::string text) {
  const size_t skipped = std::min(skipped_, text.size());
  skipped_ -= skipped;
  held_ += text.substr(skipped);
}

/// What cannot become a stop string any more.
std::string GeneratedText::release(bool last) {
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    end = std::min(end, held_.find(stop));
  }
  if (end != std::string::npos) {
    stopped_ = true;
    return held_.substr(0, end);
  }
  size_t kept = 0; // bytes at the end that a stop string begins with
  for (const std::string& stop : stops_) {
    for (size_t count = std::min(stop.size() - 1, held_.size()); count > kept && !last; --count) {
      if (held_.ends_with(std::string_view(stop).substr(0, count))) {
        kept = count;
      }
    }
  }
  std::string released = held_.substr(0, held_.size() - kept);
  held_.erase(0, released.size());
  return released;
}

GenerationText::GenerationText(
    const fs::path& folder,
    const std::string& chat_template,
    int64_t vocabulary)
    : folder_(folder) {
  if (holds_tokenizer(folder)) {
    tokenizer_ = std::make_shared<const Tokenizer>(folder);
    encoder_ = text_encoder(tokenizer_);
    require_fitting_tokenizer(folder, tokenizer_->vocabulary_size(), vocabulary);
  } else if (vocabulary == kBytes) {
    bytes_ = byte_decoder();
    encoder_.encode = [](std::string_view text) {
      const auto* bytes = reinterpret_cast<const uint8_t*>(text.data());
      return std::vector<int32_t>(bytes, bytes + text.size());
    };
  } else {
    throw UserError(
        "generate: {} has no tokenizer.json; name the tokenizer's folder with "
        "data.tokenizer=FOLDER",
        folder.string());
  }
  if (!chat_template.empty() || tokenizer_ != nullptr) {
    chat_ = open_chat_template({.name = chat_template, .folder = folder}, encoder_);
  }
  end_ids_ = end_ids_of(folder / "generation_config.json");
  if (end_ids_.empty()) {
    end_ids_ = end_ids_of(folder / "config.json");
  }
  if (tokenizer_ != nullptr && tokenizer_->end()) {
    end_ids_.insert(*tokenizer_->end());
  }
}

void GenerationText::require_text(std::string_view text) const {
  if (tokenizer_ != nullptr) {
    require_utf8(text);
  }
}

int64_t GenerationText::token_count() const {
  return tokenizer_ == nullptr ? kBytes : tokenizer_->vocabulary_size();
}

std::vector<int32_t> GenerationText::encode(std::string_view prompt) const {
  std::vector<int32_t> ids;
  if (tokenizer_ != nullptr) {
    ids = tokenizer_->prefix();
  }
  std::ranges::copy(encoder_.encode(prompt), std::back_inserter(ids));
  return not_empty(std::move(ids));
}

std::vector<int32_t> GenerationText::encode(const Conversation& conversation) const {
  if (chat_ == nullptr) {
    throw UserError(
        "generate: {} has no chat template; name one with --chat-template: {}, or a file in Jinja",
        folder_.string(),
        fmt::join(named_chat_templates(), ", "));
  }
  if (tokenizer_ != nullptr) {
    require_utf8(conversation);
  }
  return not_empty(encoder_.encode(chat_->prompt(conversation)));
}

GeneratedText GenerationText::begin(std::vector<std::string> stops) const {
  return {stream(), std::move(stops)};
}

GeneratedText GenerationText::begin(std::span<const int32_t> prompt, std::vector<std::string> stops)
    const {
  DecoderStream going = stream();
  DecoderStream whole = stream();
  size_t decided = 0;
  size_t size = 0;
  for (const int32_t id : prompt) {
    if (!is_special(id)) {
      decided += going.push(id).size();
      size += whole.push(id).size();
    }
  }
  size += whole.finish().size();
  return {std::move(going), std::move(stops), size - decided}; // the rest comes with what follows
}

DecoderStream GenerationText::stream() const {
  return tokenizer_ == nullptr ? DecoderStream(bytes_) : tokenizer_->decoder_stream();
}

GenerationText::TurnEnd GenerationText::turn_end() const {
  if (chat_ == nullptr) {
    return {};
  }
  const std::string answer = "yes";
  const RenderedChat chat = chat_->render({{"user", "?"}, {"assistant", answer}});
  if (chat.assistant.empty()) {
    return {};
  }
  const TextSpan span = chat.assistant.back();
  const std::string turn =
      chat.text.substr(static_cast<size_t>(span.begin), static_cast<size_t>(span.end - span.begin));
  const size_t found = turn.find(answer);
  const std::string after =
      found == std::string::npos ? "" : strip(turn.substr(found + answer.size()));
  if (after.empty()) {
    return {};
  }
  const std::vector<int32_t> ids = encoder_.encode(after);
  if (is_special(ids.front())) {
    return {.ids = {ids.front()}};
  }
  return {.texts = {after}};
}

} // namespace palimpsest
