#pragma once

// What a record means: the formats of training data by name.
//
//   const RecordFormat format("prompt_completion", {{"prompt", "question"}});
//   const Example example = format.example(file.read(0));
//
//   format              keys of a record
//   text                text
//   prompt_completion   prompt, completion
//   messages            messages: [{role, content}, ...]
//   sharegpt            conversations: [{from, value}, ...], system (may be missing)
//   alpaca              instruction, output; input, system, history (may be missing)
//
// A new format is a line in record_format.cc.

#include <palimpsest/core/data/chat/message.h>

#include <nlohmann/json.hpp>

#include <map>
#include <string>
#include <variant>
#include <vector>

namespace palimpsest {

/// A document of plain text.
struct Document {
  std::string text;
};

/// Text to learn after text that is given.
struct Completion {
  std::string prompt;
  std::string completion;
};

using Example = std::variant<Document, Completion, Conversation>;

/// A format's own name of a key to the name in the user's records.
using Columns = std::map<std::string, std::string>;

class RecordFormat {
 public:
  /// UserError for an unknown format, or a column that the format has not.
  RecordFormat(const std::string& name, Columns columns);

  const std::string& name() const {
    return name_;
  }
  /// UserError without the record's location: a key is missing, a value has another type, a role is
  /// unknown, a message holds more than text, nothing to learn.
  Example example(const nlohmann::json& record) const;

 private:
  std::string name_;
  Columns columns_;
};

/// The formats' names, in the order above.
std::vector<std::string> record_format_names();

/// A format's own names of the keys it reads. UserError for an unknown format.
const std::vector<std::string>& record_format_columns(const std::string& format);

} // namespace palimpsest
