#pragma once

// `palimpsest launch -n 4 train CONFIG [key=value ...]`: starts the ranks of this machine.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb.
void add_launch_verb(CLI::App& program);

} // namespace palimpsest
