#pragma once

// `palimpsest train CONFIG [key=value ...]`: trains a model and writes it as a model folder.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb.
void add_train_verb(CLI::App& program);

} // namespace palimpsest
