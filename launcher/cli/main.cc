#include <palimpsest/launcher/cli/program.h>

#include <csignal>

int main(int count, char** arguments) {
  // A file-size limit or a closed pipe is an error of the write that meets it, not a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  return palimpsest::run_program(count, arguments);
}
