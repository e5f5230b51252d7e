#pragma once

// From spans of a text to tokens.
//
//   const TokenExample example = encode_targets(encoder.encode, text.text, text.targets);

#include <palimpsest/core/data/chat/chat_template.h>
#include <palimpsest/core/data/examples/token_examples.h>
#include <palimpsest/core/data/records/text_chunks.h>

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// What data needs of a tokenizer. May be called from several threads.
struct TextEncoder {
  /// Special tokens are known where they stand in the text; none is added.
  std::function<std::vector<int32_t>(std::string_view text)> encode;
  /// The same for a part of a text that began before.
  std::function<std::vector<int32_t>(std::string_view text)> encode_rest = {};
  LastCut last_cut = {};
  /// Of the tokenizer's configuration: what chat templates are given.
  TemplateTokens tokens = {};
  /// Whether the tokenizer puts the beginning-of-sequence token before a text by itself.
  bool adds_bos = false;

  /// What stands around documents, completions and the conversations of named templates.
  TemplateTokens around() const {
    return {.bos = adds_bos ? tokens.bos : std::string(), .eos = tokens.eos};
  }
};

/// The tokens of the whole text. A token is a target where it holds any of a span's text.
TokenExample encode_targets(
    const std::function<std::vector<int32_t>(std::string_view text)>& encode,
    std::string_view text,
    const std::vector<TextSpan>& targets);

} // namespace palimpsest
