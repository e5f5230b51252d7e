#pragma once

// What a model is to go on from: prompts and conversations in files, one by one with their places.
//
//   for (const GenerationInput& input : read_prompts("prompts.txt")) { ... }      // "prompts.txt:1"

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/chat/message.h>

#include <filesystem>
#include <string>
#include <variant>
#include <vector>

namespace palimpsest {

struct GenerationInput {
  std::variant<std::string, Conversation> prompt;
  std::string where; // "prompts.txt:3"; empty: the command line

  /// What `use` returns; a UserError from it gets the place in front.
  template <typename Use>
  auto located(Use use) const {
    try {
      return use();
    } catch (const UserError& error) {
      throw UserError("{}{}{}", where, where.empty() ? "" : ": ", error.what());
    }
  }
};

/// A line of text each, or with the ending .jsonl or .json a record each with the key "prompt".
/// UserError with file and line for what is none, and for an empty one; naming --prompts for a file
/// that holds none.
std::vector<GenerationInput> read_prompts(const std::filesystem::path& file);

/// Records with the key "messages", or one array of messages. UserError with file and line for what
/// is none, and where the last message is the assistant's; naming --messages for a file that holds
/// none.
std::vector<GenerationInput> read_conversations(const std::filesystem::path& file);

} // namespace palimpsest
