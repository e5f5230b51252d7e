#pragma once

// Questions to the schema that the loader, `config show` and the reference share, asked through
// protobuf's reflection.
//
//   const auto* field = RunConfig::Optimizer::descriptor()->FindFieldByName("eps");
//   describe_allowed(*field);                        // "a number above 0"
//   default_text(*field);                            // "1e-08"
//   value_text(config, "parallel.zero");             // "0"

#include <palimpsest/core/config/key_options.pb.h>
#include <palimpsest/core/config/run_config.pb.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// What the schema says about a key beyond its type.
const KeyOptions& options_of(const google::protobuf::FieldDescriptor& field);

/// A value as a config file has it, text unquoted; of a list the item at `index`.
std::string item_text(
    const google::protobuf::Message& section,
    const google::protobuf::FieldDescriptor& field,
    int index);

/// Whether the key holds a section (or a list of sections) rather than a value.
bool is_section(const google::protobuf::FieldDescriptor& field);

/// The names of the keys of a section, in the schema's order.
std::vector<std::string> key_names(const google::protobuf::Descriptor& section);

/// "a", "b" -> "a.b"; the top level has an empty path.
std::string join_path(std::string_view path, std::string_view key);

/// What may be written for the key: "an integer from 1 to 100, or auto".
std::string describe_allowed(const google::protobuf::FieldDescriptor& field);

/// The fixed default as it would be written; empty where there is none.
std::optional<std::string> default_text(const google::protobuf::FieldDescriptor& field);

/// The shortest text that reads back as the same number: 2e-05, 10000.
std::string number_text(double number);

/// The value of a key of `section` as it would be written, defaults included; a list as [a, b];
/// empty where the key is not set and has no fixed default. Not for sections.
std::optional<std::string> value_text(
    const google::protobuf::Message& section,
    const google::protobuf::FieldDescriptor& field);

/// The same for a dotted key from the top; for a section, "set" where it is present. Unknown keys
/// break an invariant.
std::optional<std::string> value_text(const RunConfig& config, std::string_view key);

} // namespace palimpsest
