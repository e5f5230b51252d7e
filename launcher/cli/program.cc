#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/refused_text.h>
#include <palimpsest/core/config/nearest.h>
#include <palimpsest/launcher/cli/program.h>
#include <palimpsest/launcher/cli/usage.h>
#include <palimpsest/launcher/cli/verb.h>

#include <CLI/CLI.hpp>
#include <c10/util/Exception.h>
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <vector>

namespace palimpsest {
namespace {

constexpr int kEnvironmentError = 1;
constexpr int kUnexpectedError = 70;

/// The first word must be a verb; CLI11 alone would only say that it did not expect it.
void check_verb(CLI::App& program, const std::string& word) {
  std::vector<std::string> names;
  for (const CLI::App* verb : program.get_subcommands({})) {
    names.push_back(verb->get_name());
  }
  for (const std::string& name : names) {
    if (name == word) {
      return;
    }
  }
  throw UserError(
      "{}: unknown verb{}; there are {}", word, did_you_mean(word, names), fmt::join(names, ", "));
}

/// Whether nobody reads standard output any more, as behind `| head -1`: no failure of ours.
bool reader_has_gone() {
  pollfd out{.fd = STDOUT_FILENO, .events = POLLOUT, .revents = 0};
  return poll(&out, 1, 0) == 1 && (out.revents & (POLLERR | POLLHUP)) != 0;
}

int parse_and_run(int count, const char* const* arguments) {
  CLI::App program{
      "Palimpsest trains PyTorch-shaped models with less memory, by planning each step.",
      "palimpsest"};
  program.set_version_flag("--version", PALIMPSEST_VERSION);
  register_verbs(program);
  program.footer(examples("palimpsest config show run.yaml\npalimpsest VERB --help"));
  if (count < 2) {
    std::fputs(program.help().c_str(), stdout);
    return 0;
  }
  if (arguments[1][0] != '-') {
    check_verb(program, arguments[1]);
  }
  try {
    program.parse(count, const_cast<char**>(arguments)); // CLI11 only reads them
  } catch (const CLI::ParseError& error) { // --help and --version too, with code 0
    if (error.get_exit_code() != 0) {
      throw usage_error(program, error);
    }
    return program.exit(error);
  }
  return 0;
}

} // namespace

int run_program(int count, const char* const* arguments) {
  try {
    const int code = parse_and_run(count, arguments);
    if ((!std::cout.flush() || std::fflush(stdout) != 0) && !reader_has_gone()) {
      throw EnvironmentError("cannot write to standard output: the disk is full");
    }
    return code;
  } catch (const ExitCode& end) {
    std::cout.flush();
    return end.code();
  } catch (const Error& error) {
    std::fprintf(stderr, "palimpsest: %s\n", error.what());
    return error.exit_code();
  } catch (const c10::OutOfMemoryError& error) {
    std::fprintf(stderr, "palimpsest: %s\n", error.what_without_backtrace());
    return kEnvironmentError;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "palimpsest: out of memory: the system gives no more\n");
    return kEnvironmentError;
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "palimpsest: %s\n", refused_text(error).c_str());
    return kEnvironmentError;
  } catch (const c10::Error& error) {
    std::fprintf(stderr, "palimpsest: unexpected error: %s\n", error.what_without_backtrace());
    return kUnexpectedError;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "palimpsest: unexpected error: %s\n", error.what());
    return kUnexpectedError;
  }
}

} // namespace palimpsest
