#pragma once

// `palimpsest eval TARGET [key=value ...]`: the loss of a trained model on held-out samples.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb.
void add_eval_verb(CLI::App& program);

} // namespace palimpsest
