#pragma once

// `palimpsest inspect FOLDER`: what a checkpoint holds, or which checkpoints an output folder has.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb.
void add_inspect_verb(CLI::App& program);

} // namespace palimpsest
