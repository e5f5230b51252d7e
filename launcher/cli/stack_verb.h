#pragma once

// `palimpsest stack CONFIG`: the memory benchmark. One model, one data set, one seed, while
// techniques are stacked, a row at a time.
//
//   add_stack_verb(program);

namespace CLI {
class App;
}

namespace palimpsest {

void add_stack_verb(CLI::App& program);

} // namespace palimpsest
