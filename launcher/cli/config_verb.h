#pragma once

// `palimpsest config show CONFIG [key=value ...]` and `palimpsest config reference`.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb; it prints to standard output.
void add_config_verb(CLI::App& program);

} // namespace palimpsest
