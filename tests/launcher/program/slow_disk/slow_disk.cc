// A slow disk on demand, to preload into the program: on the rank that PALIMPSEST_SLOW_RANK names, the
// fsync of the last file of each save takes PALIMPSEST_SLOW_MILLISECONDS more, or, where
// PALIMPSEST_SLOW_FILE is given, opening files of that name.

#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>

namespace {

const char* variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

bool is_slow_rank() {
  const std::string_view slow = variable("PALIMPSEST_SLOW_RANK");
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (slow == variable(name)) {
      return !slow.empty();
    }
  }
  return false;
}

void be_slow() {
  const int delay = std::atoi(variable("PALIMPSEST_SLOW_MILLISECONDS"));
  std::this_thread::sleep_for(std::chrono::milliseconds(delay));
}

bool ends_a_save(int fd) {
  std::error_code error;
  const std::string path =
      std::filesystem::read_symlink("/proc/self/fd/" + std::to_string(fd), error).string();
  const size_t name = path.rfind('/');
  return name != std::string::npos && path.find("rank-", name) != std::string::npos &&
      path.find(".part", name) != std::string::npos;
}

} // namespace

extern "C" int fsync(int fd) {
  if (std::getenv("PALIMPSEST_SLOW_FILE") == nullptr && is_slow_rank() && ends_a_save(fd)) {
    be_slow();
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

extern "C" int open(const char* path, int flags, ...) {
  va_list more;
  va_start(more, flags);
  const unsigned mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? va_arg(more, unsigned) : 0;
  va_end(more);
  const std::string_view file = variable("PALIMPSEST_SLOW_FILE");
  if (!file.empty() && std::string_view(path).ends_with(file) && is_slow_rank()) {
    be_slow();
  }
  return static_cast<int>(syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}
