#pragma once

// A tokenizer that tests can follow by eye: the longest of its words wherever it stands, else bytes.
// Bytes are their own ids, words 256 and on.

#include <palimpsest/core/data/examples/token_targets.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

inline std::vector<int32_t> toy_encode(
    std::string_view text,
    const std::vector<std::string>& words) {
  std::vector<int32_t> ids;
  while (!text.empty()) {
    int32_t id = static_cast<unsigned char>(text.front());
    size_t size = 1;
    for (size_t i = 0; i < words.size(); ++i) {
      if (text.starts_with(words[i]) && words[i].size() > size) {
        id = 256 + static_cast<int32_t>(i);
        size = words[i].size();
      }
    }
    ids.push_back(id);
    text.remove_prefix(size);
  }
  return ids;
}

/// Texts may be cut before a space.
inline TextEncoder toy_encoder(std::vector<std::string> words, const TemplateTokens& tokens = {}) {
  const auto encode = [words = std::move(words)](std::string_view text) {
    return toy_encode(text, words);
  };
  const auto last_space = [](std::string_view text) -> std::optional<size_t> {
    const size_t at = text.rfind(' ');
    return at == text.npos ? std::nullopt : std::optional(at);
  };
  return {
      .encode = encode,
      .encode_rest = encode,
      .last_cut = last_space,
      .tokens = tokens,
      .adds_bos = true,
      .before = encode(tokens.bos),
      .after = encode(tokens.eos)};
}

} // namespace palimpsest
