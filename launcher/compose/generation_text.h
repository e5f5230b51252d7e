#pragma once

// The text side of generating: prompts and conversations to tokens, tokens to text, and where a
// text ends.
//
//   GenerationText text("Llama-3.2-1B", /*chat_template=*/"", /*vocabulary=*/128256);
//   std::vector<int32_t> ids = text.encode("Once upon a time");
//   GeneratedText reply = text.begin(ids, {"\n\n"});
//   std::cout << reply.push(id) << std::flush;            // piece by piece
//
// A model without a tokenizer and with a vocabulary of 256 reads bytes, as in training.

#include <palimpsest/core/data/chat/chat_template.h>
#include <palimpsest/core/data/examples/token_targets.h>
#include <palimpsest/core/data/tokenizer/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// Text that grows token by token, up to the first stop string. What may be the beginning of one is
/// held back until it is known not to be.
class GeneratedText {
 public:
  /// Leaves out the first `skipped` bytes, of a prompt.
  GeneratedText(DecoderStream stream, std::vector<std::string> stops, size_t skipped = 0)
      : stream_(std::move(stream)), stops_(std::move(stops)), skipped_(skipped) {}

  /// The text that this token decides.
  std::string push(int32_t id);
  /// What was held back, when no token follows.
  std::string finish();
  /// Whether a stop string came; it and what follows it are no part of the text.
  bool stopped() const {
    return stopped_;
  }

 private:
  void hold(std::string text);
  std::string release(bool last);

  DecoderStream stream_;
  std::vector<std::string> stops_;
  size_t skipped_;
  std::string held_;
  bool stopped_ = false;
};

class GenerationText {
 public:
  /// `folder`: with tokenizer, chat template and generation config; `chat_template`: a name or a
  /// file in Jinja, empty for the folder's own; `vocabulary`: of the model, which may have more ids
  /// than the tokenizer has tokens. UserError where there is no tokenizer, it has more tokens, or a
  /// file cannot be read as it is meant.
  GenerationText(
      const std::filesystem::path& folder,
      const std::string& chat_template,
      int64_t vocabulary);

  /// The ids below this are tokens. What else the model has scores for stands for no text.
  int64_t token_count() const;

  /// UserError where a text is none that can be encoded: with a tokenizer, no UTF-8.
  void require_text(std::string_view text) const;

  /// A prompt's tokens, after those that the tokenizer puts before a text. UserError where there is
  /// none.
  std::vector<int32_t> encode(std::string_view prompt) const;
  /// Of a conversation, up to where the assistant's next message begins. UserError where there is
  /// no chat template, or it does not allow the conversation.
  std::vector<int32_t> encode(const Conversation& conversation) const;

  /// The text of what a model writes after `prompt`. Of a completion it goes on from the prompt's
  /// text; a chat's reply is a text of its own.
  GeneratedText begin(std::span<const int32_t> prompt, std::vector<std::string> stops) const;
  GeneratedText begin(std::vector<std::string> stops) const;

  /// Tokens that end a text: those of the generation config, or else of the config, and the
  /// tokenizer's end of sequence.
  const std::set<int32_t>& end_ids() const {
    return end_ids_;
  }
  /// What ends a message of the assistant besides: what the chat template puts after it, as a token
  /// or, where the tokenizer has none of that text, as a text.
  struct TurnEnd {
    std::set<int32_t> ids;
    std::vector<std::string> texts;
  };
  TurnEnd turn_end() const;
  /// Whether a token is one of those that mark text, and no text.
  bool is_special(int32_t id) const {
    return tokenizer_ != nullptr && tokenizer_->is_special(id);
  }

 private:
  DecoderStream stream() const;

  std::filesystem::path folder_;
  std::shared_ptr<const Tokenizer> tokenizer_; // null where bytes are tokens
  Decoder bytes_;
  TextEncoder encoder_;
  std::shared_ptr<const ChatTemplate> chat_; // may be null
  std::set<int32_t> end_ids_;
};

} // namespace palimpsest
