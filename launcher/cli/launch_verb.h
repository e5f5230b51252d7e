#pragma once

// `palimpsest launch -n 4 train CONFIG [key=value ...]`: starts the ranks of this machine.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb. The last to be added: ranks can do what the verbs before it do.
void add_launch_verb(CLI::App& program);

} // namespace palimpsest
