#include <palimpsest/launcher/launch/threads.h>

#include <palimpsest/core/base/error.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

namespace palimpsest {

std::vector<int> allowed_processors() {
  // A machine may have more processors than the C library's fixed set holds.
  for (int size = CPU_SETSIZE; size <= 1 << 20; size *= 2) {
    const std::unique_ptr<cpu_set_t, void (*)(cpu_set_t*)> mask(
        CPU_ALLOC(static_cast<size_t>(size)), [](cpu_set_t* set) { CPU_FREE(set); });
    const size_t bytes = CPU_ALLOC_SIZE(static_cast<size_t>(size));
    CPU_ZERO_S(bytes, mask.get());
    if (sched_getaffinity(0, bytes, mask.get()) == 0) {
      std::vector<int> processors;
      for (int processor = 0; processor < size; ++processor) {
        if (CPU_ISSET_S(static_cast<size_t>(processor), bytes, mask.get())) {
          processors.push_back(processor);
        }
      }
      return processors;
    }
    if (errno != EINVAL) {
      break;
    }
  }
  throw EnvironmentError(
      "cannot read which processors this process may use: {}", std::strerror(errno));
}

int threads_per_rank(int64_t processors, int64_t local_world_size) {
  check(local_world_size > 0, "{} ranks on this host", local_world_size);
  return static_cast<int>(std::max<int64_t>(1, processors / local_world_size));
}

int threads_per_rank(const std::vector<std::vector<int>>& local_masks, int local_rank) {
  check(
      local_rank >= 0 && static_cast<size_t>(local_rank) < local_masks.size(),
      "local rank {} of {}",
      local_rank,
      local_masks.size());
  double share = 0;
  for (const int processor : local_masks[static_cast<size_t>(local_rank)]) {
    const auto sharers =
        std::count_if(local_masks.begin(), local_masks.end(), [&](const std::vector<int>& mask) {
          return std::find(mask.begin(), mask.end(), processor) != mask.end();
        });
    share += 1.0 / static_cast<double>(sharers);
  }
  constexpr double kRounding = 1e-6; // three thirds are a whole
  return std::max(1, static_cast<int>(share + kRounding));
}

std::optional<std::string> launch_advice(int gpu_count, const std::vector<std::string>& arguments) {
  if (gpu_count < 2) {
    return std::nullopt;
  }
  return fmt::format(
      "this machine has {} GPUs and one process uses one of them; to use all:\n  palimpsest launch "
      "-n {} {}\n",
      gpu_count,
      gpu_count,
      shell_line(arguments));
}

std::string shell_line(const std::vector<std::string>& arguments) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-./:=,+@%";
  std::string line;
  for (const std::string& argument : arguments) {
    std::string word = argument;
    if (word.empty() || word.find_first_not_of(kPlain) != std::string::npos) {
      word = "'";
      for (const char c : argument) {
        word += c == '\'' ? std::string("'\\''") : std::string(1, c);
      }
      word += "'";
    }
    line += (line.empty() ? "" : " ") + word;
  }
  return line;
}

} // namespace palimpsest
