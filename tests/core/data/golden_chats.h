#pragma once

// Conversations as the reference renders them.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/chat/message.h>

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace palimpsest {

struct GoldenChat {
  Conversation messages;
  bool prompt = false;
  bool refused = false;
  std::string text;
  std::vector<int32_t> ids;
};

inline std::filesystem::path golden_tokenizer(const std::string& folder) {
  return std::filesystem::path(PALIMPSEST_TEST_DATA) / "tokenizers" / folder;
}

inline std::vector<GoldenChat> golden_chats(const std::string& folder) {
  const auto cases =
      nlohmann::json::parse(read_file(golden_tokenizer(folder) / "chat_cases.json"))["cases"];
  std::vector<GoldenChat> chats;
  for (const auto& item : cases) {
    GoldenChat chat{.prompt = item["add_generation_prompt"], .refused = item.contains("error")};
    for (const auto& message : item["messages"]) {
      chat.messages.push_back({message["role"], message["content"]});
    }
    if (!chat.refused) {
      chat.text = item["text"];
      chat.ids = item["ids"].get<std::vector<int32_t>>();
    }
    chats.push_back(std::move(chat));
  }
  return chats;
}

} // namespace palimpsest
