#include <palimpsest/launcher/cli/program.h>

int main(int count, char** arguments) {
  return palimpsest::run_program(count, arguments);
}
