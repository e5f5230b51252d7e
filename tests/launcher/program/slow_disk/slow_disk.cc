// A slow disk on demand, to preload into the program: in each save of the rank that
// PALIMPSEST_SLOW_RANK names, the fsync of its last file takes PALIMPSEST_SLOW_MILLISECONDS more.

#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
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
  if (is_slow_rank() && ends_a_save(fd)) {
    const int delay = std::atoi(variable("PALIMPSEST_SLOW_MILLISECONDS"));
    std::this_thread::sleep_for(std::chrono::milliseconds(delay));
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}
