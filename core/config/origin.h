#pragma once

// Where the values of a config came from, by dotted key: "optimizer.learning_rate" ->
// {"run.yaml:4", "2e-5"}.

#include <map>
#include <string>
#include <vector>

namespace palimpsest {

struct Origin {
  enum class Kind { kWritten, kPreset, kDerived };
  std::string
      where; // "run.yaml:4", "override optimizer.learning_rate=2e-5", "preset tiny", "from hidden_size"
  std::string given; // the text as it was written
  Kind kind = Kind::kWritten;
};

/// Keys that are missing here have their defaults.
using Origins = std::map<std::string, Origin>;

/// What is wrong with a config, one sentence each.
using Problems = std::vector<std::string>;

} // namespace palimpsest
