#pragma once

// A conversation with a model, turn by turn: what both have said stays in the model's cache, so
// that a turn costs what is new in it.
//
//   Chat chat(model, text, settings, {.system = "You are terse.", .max_new_tokens = 256});
//   chat.reply("Hello!", {.piece = [](size_t, const std::string& piece) { std::cout << piece; }});

#include <palimpsest/launcher/compose/generation_model.h>
#include <palimpsest/launcher/compose/generation_text.h>
#include <palimpsest/launcher/compose/text_generator.h>

#include <cstdint>
#include <string>
#include <vector>

namespace palimpsest {

struct ChatSettings {
  std::string system = {}; // the first message; empty: none
  int64_t max_new_tokens = 0; // of a reply
};

class Chat {
 public:
  /// Model and text outlive it.
  Chat(
      GenerationModel& model,
      const GenerationText& text,
      GenerationSettings generation,
      ChatSettings settings);

  /// What the model answers. UserError, and the message is not part of the conversation, where the
  /// template refuses it or the model has no position left.
  GenerationResult reply(const std::string& message, const GenerationCallbacks& callbacks);

  /// Begins a new conversation.
  void reset();

  const Conversation& conversation() const {
    return conversation_;
  }
  /// Tokens that the last reply read anew: the others were in the cache.
  int64_t tokens_read() const {
    return tokens_read_;
  }

 private:
  GenerationModel& model_;
  const GenerationText& text_;
  ChatSettings settings_;
  int64_t max_positions_;
  TextGenerator generator_;
  Conversation conversation_;
  KvCache cache_;
  std::vector<int32_t> held_; // the tokens in the cache
  uint64_t turn_ = 0;
  int64_t tokens_read_ = 0;
};

} // namespace palimpsest
