#pragma once

// From spans of a text to tokens.
//
//   const TokenExample example = encode_example(encoder, text);

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
  int64_t vocabulary_size = 0; ///< ids are below it
  /// Of the tokenizer's configuration: what chat templates are given.
  TemplateTokens tokens = {};
  /// Whether the tokenizer puts the beginning-of-sequence token before a text by itself.
  bool adds_bos = false;
  /// What stands around documents and completions: the tokens that the tokenizer adds to a text by
  /// itself, and its end-of-sequence token. As ids, since a text that began with a token's text
  /// would lose what tokenizers do at its beginning.
  std::vector<int32_t> before = {};
  std::vector<int32_t> after = {};

  /// What stands in the conversations of named templates.
  TemplateTokens around() const {
    return {.bos = adds_bos ? tokens.bos : std::string(), .eos = tokens.eos};
  }
};

struct TargetText {
  std::string text;
  std::vector<TextSpan> targets; ///< in order, disjoint
  /// The tokenizer's tokens stand around it. Those after it are learnt, those before it where the
  /// text's beginning is.
  bool surrounded = false;
};

/// The tokens of the whole text. A token is a target where it holds any of a span's text.
TokenExample encode_targets(
    const std::function<std::vector<int32_t>(std::string_view text)>& encode,
    std::string_view text,
    const std::vector<TextSpan>& targets);

/// The same, with the tokens around a text that is surrounded.
TokenExample encode_example(const TextEncoder& encoder, const TargetText& text);

} // namespace palimpsest
