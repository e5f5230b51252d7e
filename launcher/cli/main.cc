#include <palimpsest/launcher/cli/program.h>

#include <sys/mman.h>
#include <unistd.h>

#include <csignal>

namespace {

/// Libraries fill their tables before main(), and end the process by a signal where there is no
/// memory for them: this comes before them, so it may use nothing but the system.
void require_address_space() {
  constexpr size_t kLeast = size_t{64} << 20;
  void* const room =
      mmap(nullptr, kLeast, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) {
    constexpr char kText[] =
        "palimpsest: out of memory: the system does not give the 64 MiB that the program starts "
        "with; free memory, or raise the limit on address space (ulimit -v)\n";
    [[maybe_unused]] const auto written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
    _exit(1);
  }
  munmap(room, kLeast);
}

[[gnu::used,
  gnu::section(".preinit_array")]] void (*const before_libraries)() = require_address_space;

} // namespace

int main(int count, char** arguments) {
  // A file-size limit or a closed pipe is an error of the write that meets it, not a signal.
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  return palimpsest::run_program(count, arguments);
}
