#pragma once

// `palimpsest plan CONFIG [key=value ...]`: what a run would do and hold, without training.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb.
void add_plan_verb(CLI::App& program);

} // namespace palimpsest
