#pragma once

// Wrong arguments, told in this program's words.
//
//   try {
//     program.parse(count, arguments);
//   } catch (const CLI::ParseError& error) {       // --help too, with exit code 0
//     throw usage_error(program, error);           // "train: unknown option --stpes (did you mean --steps?); ..."
//   }

#include <palimpsest/core/base/error.h>

#include <set>
#include <string>

namespace CLI {
class App;
class ParseError;
} // namespace CLI

namespace palimpsest {

/// What the user should do, by the verb that was being read: an option that there is not, with the
/// nearest that there is; a missing or surplus argument; a value that is not allowed.
UserError usage_error(const CLI::App& program, const CLI::ParseError& error);

/// Lets every option and argument of the program and of its verbs refuse an empty text, which would
/// count as not given; but for the options of these names ("--prompt").
void refuse_empty_values(CLI::App& program, const std::set<std::string>& but = {});

} // namespace palimpsest
