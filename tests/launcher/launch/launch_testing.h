#pragma once

// Real processes for tests: started with what they print in files, waited for with a limit, and
// counted by a variable that they and all that they start carry.

#include <palimpsest/launcher/launch/spawn.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gtest/gtest.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest::testing {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

inline constexpr const char* kMarkVariable = "PALIMPSEST_TEST_MARK";

/// Whether the long versions of the tests were asked for.
inline bool full_tests() {
  return std::getenv("PALIMPSEST_FULL") != nullptr;
}

inline std::string text_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// True as soon as `condition` is, false where it is not within `limit`.
template <typename Condition>
bool eventually(std::chrono::milliseconds limit, const Condition& condition) {
  const auto end = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) {
      return false;
    }
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

/// The command lines of living processes whose environment says NAME=value.
inline Words processes_with(const std::string& variable) {
  Words found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename();
    if (name.find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    const std::string environment = '\0' + text_of(entry.path() / "environ");
    if (environment.find('\0' + variable + '\0') != std::string::npos) {
      std::string line = text_of(entry.path() / "cmdline");
      std::replace(line.begin(), line.end(), '\0', ' ');
      found.push_back(name + ": " + line);
    }
  }
  return found;
}

/// A folder of its own, and processes that carry its name.
class ProcessFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = make_temporary_folder("launch");
  }

  void TearDown() override {
    EXPECT_TRUE(all_gone()) << ::testing::PrintToString(left());
    for (const std::string& process : left()) {
      kill(static_cast<pid_t>(std::stoi(process)), SIGKILL);
    }
    std::filesystem::remove_all(folder_);
  }

  /// Starts a program with its output in out(), err().
  pid_t start(const Words& command, const Environment& more = {}) {
    Environment environment = current_environment();
    remove_rank_variables(environment);
    environment[kMarkVariable] = folder_.string();
    for (const auto& [name, value] : more) {
      environment[name] = value;
    }
    return spawn(command, environment, SIGKILL, [this] {
      const int flags = O_WRONLY | O_CREAT | O_TRUNC;
      dup2(open((folder_ / "out").c_str(), flags, 0600), 1);
      dup2(open((folder_ / "err").c_str(), flags, 0600), 2);
      std::signal(SIGINT, SIG_DFL); // as from a terminal, whatever runs the tests
    });
  }

  std::string out() const {
    return text_of(folder_ / "out");
  }
  std::string err() const {
    return text_of(folder_ / "err");
  }

  /// The exit code, 128+n for signal n; nothing where the process does not end.
  static std::optional<int> wait_for(pid_t process, std::chrono::milliseconds limit = 20s) {
    int status = 0;
    if (!eventually(limit, [&] { return waitpid(process, &status, WNOHANG) == process; })) {
      kill(process, SIGKILL);
      waitpid(process, nullptr, 0);
      return std::nullopt;
    }
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
  }

  /// What still runs of all that was started here.
  Words left() const {
    return processes_with(std::string(kMarkVariable) + "=" + folder_.string());
  }
  bool all_gone(std::chrono::milliseconds limit = 10s) const {
    return eventually(limit, [this] { return left().empty(); });
  }

  /// The process id that rank `rank` wrote with the step pid=FOLDER; 0: it did not.
  pid_t rank_pid(int rank) const {
    const std::filesystem::path file = folder_ / std::to_string(rank);
    return eventually(10s, [&] { return std::filesystem::exists(file); })
        ? static_cast<pid_t>(std::stoi(text_of(file)))
        : 0;
  }
  std::string pid_step() const {
    return "pid=" + folder_.string();
  }
  std::string log(int rank) const {
    return text_of(folder_ / "logs" / ("rank-000" + std::to_string(rank) + ".log"));
  }

  std::filesystem::path folder_;
};

} // namespace palimpsest::testing
