#pragma once

// Reads the settings of a run: a YAML or JSON file, overrides of the command line, presets and
// defaults, checked as a whole.
//
//   Origins origins;
//   const RunConfig config = load_config("run.yaml", {"training.steps=100", "precision.compute=bf16"}, &origins);
//   config.optimizer().eps();             // a key with a fixed default always reads as a value
//   config.training().has_steps();        // one without is asked first
//   origins.at("training.steps").where;   // "override training.steps=100"
//
// Every section of the schema is present afterwards, except those that take effect by being there
// (lora, rope_scaling, validation). Nothing changes a config after this, so pass it as `const
// RunConfig&`.

#include <palimpsest/core/config/origin.h>
#include <palimpsest/core/config/run_config.pb.h>

#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// Settings from the file at `path` (`.json` is JSON, anything else YAML) and `overrides` of the
/// form `key=value` with dotted keys, which win over the file; `key=null` takes a key of the file
/// back. An override's value is a word or number as in the file, or a YAML list or map in brackets.
/// With `origins`, says where each key came from.
///
/// Numbers are written without quotes, as YAML 1.2 and JSON have them: 2e-5, 2E-5 and .00002 are
/// numbers, "2e-5" is text and refused where a number is wanted; sizes such as 8GiB may be quoted.
///
/// Throws UserError that lists everything wrong at once (file:line, key, what was given, what is
/// allowed): malformed text, unknown keys with the nearest name, wrong types, duplicates, values
/// out of range, missing or contradictory keys, and features that this version does not have.
RunConfig load_config(
    const std::filesystem::path& path,
    const std::vector<std::string>& overrides = {},
    Origins* origins = nullptr);

/// The same from text; `name` stands for the file's name in messages, decides between YAML and
/// JSON, and names the default output folder.
RunConfig load_config_text(
    std::string_view text,
    const std::filesystem::path& name,
    const std::vector<std::string>& overrides = {},
    Origins* origins = nullptr);

} // namespace palimpsest
