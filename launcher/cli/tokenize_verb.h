#pragma once

// `palimpsest tokenize FILES`: text to a token file, or with --train to a new tokenizer.

namespace CLI {
class App;
}

namespace palimpsest {

/// Adds the verb.
void add_tokenize_verb(CLI::App& program);

} // namespace palimpsest
