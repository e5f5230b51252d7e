#pragma once

// What text needs before it is samples: a tokenizer, and a template for conversations.
//
//   const std::optional<TextEncoder> encoder = open_text_encoder("Llama-3.2-1B");
//   encoder->encode("Hello");
//   const auto chat = open_chat_template({.folder = "Llama-3.2-1B"}, *encoder);
//   chat->prompt({{"user", "Hello"}});

#include <palimpsest/core/data/chat/chat_template.h>
#include <palimpsest/core/data/examples/token_targets.h>
#include <palimpsest/core/data/tokenizer/tokenizer.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>

namespace palimpsest {

/// A tokenizer for use from any thread.
TextEncoder text_encoder(std::shared_ptr<const Tokenizer> tokenizer);

/// Whether there is a tokenizer in a folder.
bool holds_tokenizer(const std::filesystem::path& folder);

/// The tokenizer in a folder; nothing where the folder is empty ("") or holds none. UserError where
/// it cannot be read as it is meant.
std::optional<TextEncoder> open_text_encoder(const std::filesystem::path& folder);

/// UserError where the tokenizer of a folder has more tokens than the model has ids.
void require_fitting_tokenizer(
    const std::filesystem::path& folder,
    int64_t tokens,
    int64_t vocabulary_size);

struct ChatTemplateChoice {
  /// A template's name, or a file in Jinja; empty: the folder's.
  std::string name = {};
  std::filesystem::path folder = {}; ///< the tokenizer's
};

/// Null where none is named and the folder brings none. UserError for a name that is neither a
/// template nor a file; EnvironmentError as JinjaProcess.
std::shared_ptr<const ChatTemplate> open_chat_template(
    const ChatTemplateChoice& choice,
    const TextEncoder& encoder);

} // namespace palimpsest
