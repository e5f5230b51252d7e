#pragma once

// `palimpsest generate`: what a model writes after a prompt, prompts or conversations of a file, or
// in a chat.

namespace CLI {
class App;
}

namespace palimpsest {

void add_generate_verb(CLI::App& program);

} // namespace palimpsest
