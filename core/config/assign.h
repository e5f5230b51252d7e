#pragma once

// The one walk that puts what was written into a config: every key is looked up in the schema,
// every value is checked against its type, range and allowed words. Files, overrides, presets and
// default lists all go through it.
//
//   Problems problems;
//   Origins origins;
//   assign(parse_document("optimizer: {eps: -1}", "run.yaml", problems), {"run.yaml"}, config, origins, problems);
//   // problems: "run.yaml:1: optimizer.eps: -1 is not allowed; give a number above 0"

#include <palimpsest/core/config/document.h>
#include <palimpsest/core/config/origin.h>

#include <google/protobuf/message.h>

#include <string>

namespace palimpsest {

/// Where a document comes from.
struct NodeOrigin {
  std::string name; // "run.yaml" or "override training.steps=100"
  bool has_lines = true; // messages say name:line
  bool command_line =
      false; // null takes an earlier value back, and numbers may be text: quotes are for the shell
  std::string path = {}; // dotted key of the section that the document fills; empty for the top
  Origin::Kind kind = Origin::Kind::kWritten;
};

/// Puts the map `document` into `section`, replacing what it sets already. Wrong keys and values
/// are left out and described in `problems`, all of them; `origins` names every key that was
/// mentioned, right or wrong.
void assign(
    const DocumentNode& document,
    const NodeOrigin& place,
    google::protobuf::Message& section,
    Origins& origins,
    Problems& problems);

} // namespace palimpsest
