#pragma once

// `palimpsest export CHECKPOINT OUT`: a model folder from a checkpoint.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb.
void add_export_verb(CLI::App& program);

} // namespace palimpsest
