#pragma once

// The program behind main(): parses the command line, runs a verb, and turns errors into a message
// and an exit code.
//
//   const char* arguments[] = {"palimpsest", "config", "reference"};
//   int exit_code = run_program(3, arguments);

namespace palimpsest {

/// Runs the verb that the arguments name; `arguments[0]` is the program. Returns the exit code: 0,
/// an Error's own code, 2 for a command line that is wrong, 70 for any other exception. Messages go
/// to standard error, nothing is thrown.
int run_program(int count, const char* const* arguments);

} // namespace palimpsest
