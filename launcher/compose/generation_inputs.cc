#include <palimpsest/launcher/compose/generation_inputs.h>

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/records/data_file_error.h>
#include <palimpsest/core/data/records/record_file.h>
#include <palimpsest/core/data/records/record_format.h>
#include <palimpsest/core/io/json.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <system_error>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

bool holds_records(const fs::path& file) {
  return file.extension() == ".jsonl" || file.extension() == ".json";
}

RecordFile open_records(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) {
    throw DataFileError(
        "{}: {}; give a file of records",
        file.string(),
        fs::exists(file, error) ? "it is no regular file" : "there is no such file");
  }
  return RecordFile(file);
}

std::string prompt_of(const nlohmann::json& record) {
  const auto prompt = record.find("prompt");
  if (prompt == record.end() || !prompt->is_string()) {
    throw UserError("a record needs the key \"prompt\" with a text");
  }
  return prompt->get<std::string>();
}

std::vector<GenerationInput> prompt_lines(const fs::path& file) {
  std::string text = read_file(file);
  if (text.starts_with("\xEF\xBB\xBF")) {
    text.erase(0, 3);
  }
  std::vector<GenerationInput> inputs;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    std::string line = text.substr(begin, end - begin);
    if (line.ends_with('\r')) {
      line.pop_back();
    }
    inputs.push_back({std::move(line), fmt::format("{}:{}", file.string(), inputs.size() + 1)});
    begin = end + 1;
  }
  return inputs;
}

Conversation conversation_of(const nlohmann::json& record) {
  auto conversation = std::get<Conversation>(RecordFormat("messages", {}).example(record));
  if (conversation.back().role == "assistant") {
    throw UserError("the last message is the assistant's; end with the one that it shall answer");
  }
  return conversation;
}

std::vector<GenerationInput> prompts_in(const fs::path& file) {
  std::vector<GenerationInput> inputs;
  if (holds_records(file)) {
    const RecordFile records = open_records(file);
    for (int64_t index = 0; index < records.size(); ++index) {
      std::string prompt = records.located(index, [&] { return prompt_of(records.read(index)); });
      inputs.push_back({std::move(prompt), records.location(index)});
    }
  } else {
    inputs = prompt_lines(file);
  }
  for (const GenerationInput& input : inputs) {
    if (std::get<std::string>(input.prompt).empty()) {
      throw UserError("{}: the prompt is empty", input.where);
    }
  }
  if (inputs.empty()) {
    throw DataFileError("{} is empty; give a prompt a line", file.string());
  }
  return inputs;
}

std::vector<GenerationInput> conversations_in(const fs::path& file) {
  const RecordFile records = open_records(file);
  std::vector<nlohmann::json> read;
  for (int64_t index = 0; index < records.size(); ++index) {
    read.push_back(records.located(index, [&] { return records.read(index); }));
  }
  if (read.front().contains("role")) { // the whole file is one conversation
    const GenerationInput whole{.prompt = {}, .where = file.string()};
    return {{whole.located([&] { return conversation_of({{"messages", read}}); }), file.string()}};
  }
  std::vector<GenerationInput> inputs;
  for (int64_t index = 0; index < records.size(); ++index) {
    Conversation conversation =
        records.located(index, [&] { return conversation_of(read[static_cast<size_t>(index)]); });
    inputs.push_back({std::move(conversation), records.location(index)});
  }
  return inputs;
}

} // namespace

std::vector<GenerationInput> read_prompts(const fs::path& file) {
  return from_option("--prompts", [&] { return prompts_in(file); });
}

std::vector<GenerationInput> read_conversations(const fs::path& file) {
  return from_option("--messages", [&] { return conversations_in(file); });
}

} // namespace palimpsest
