#pragma once

// A YAML or JSON text as a tree of what was written, with line numbers: no types yet, those come
// from the schema.
//
//   Problems problems;
//   const DocumentNode root = parse_document("a: {b: [1, x]}", "run.yaml", problems);
//   root.items[0].items[0].items[1].text;   // "x"; root.keys[0] is "a"

#include <palimpsest/core/config/origin.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

struct DocumentNode {
  enum class Kind {
    kNull, // null, ~ or nothing at all
    kPlain, // a number, true, false or an unquoted word
    kQuoted, // a word in quotes
    kList,
    kMap,
  };
  Kind kind = Kind::kNull;
  int line = 0; // of its key where it has one
  std::string text; // of kPlain and kQuoted
  std::vector<DocumentNode> items; // of kList and kMap
  std::vector<std::string> keys; // of kMap, one for each item
};

/// Nesting that is refused: nobody writes it, and each level costs stack further on.
constexpr int kDeepestNesting = 32;

/// The tree of `text`; `name` ends in `.json` for JSON, else the text is YAML, and appears in
/// messages. Duplicate keys are added to `problems`. Throws UserError naming the line where the
/// text is malformed, nested deeper than kDeepestNesting, not UTF-8, or uses YAML that a config has
/// no use for (aliases, tags, several documents).
DocumentNode parse_document(
    std::string_view text,
    const std::filesystem::path& name,
    Problems& problems);

/// Text from outside as it may stand in a message: on one line, and not longer than a line.
std::string shorten(std::string_view text);

/// What was written, for messages: shortened text, or "a list", "a section", "nothing".
std::string describe(const DocumentNode& node);

} // namespace palimpsest
