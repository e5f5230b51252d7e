#include <palimpsest/launcher/launch/spawn.h>

#include <palimpsest/core/base/error.h>

#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>

namespace palimpsest {
namespace {

constexpr int kCannotRun = 127; // as shells do

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) {
    all.push_back(text.data());
  }
  all.push_back(nullptr);
  return all;
}

} // namespace

void begin_child(pid_t parent, int death_signal) {
  setpgid(0, 0);
  prctl(PR_SET_PDEATHSIG, death_signal);
  if (getppid() != parent) {
    _exit(128 + death_signal); // it ended before we asked for its signal
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
}

pid_t spawn(
    const std::vector<std::string>& command,
    const Environment& environment,
    int death_signal,
    const std::function<void()>& prepare) {
  std::vector<std::string> arguments = command;
  std::vector<std::string> variables;
  for (const auto& [name, value] : environment) {
    variables.push_back(name + "=" + value);
  }
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) {
    throw EnvironmentError("cannot start {}: {}", command[0], std::strerror(errno));
  }
  if (child > 0) {
    setpgid(child, child); // whoever of the two comes first
    return child;
  }
  try {
    begin_child(parent, death_signal);
    prepare();
    execve(arguments[0].c_str(), pointers(arguments).data(), pointers(variables).data());
    throw EnvironmentError("cannot run {}: {}", command[0], std::strerror(errno));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "palimpsest: %s\n", error.what());
  }
  _exit(kCannotRun);
}

int exit_code_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

SignalQueue::SignalQueue(const std::vector<int>& signals) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) {
    struct sigaction action {};
    sigaction(signal, nullptr, &action);
    const bool ignored = action.sa_handler == SIG_IGN;
    if (ignored && signal == SIGCHLD) {
      std::signal(SIGCHLD, SIG_DFL); // or the system would reap our children before us
    }
    if (!ignored || signal == SIGCHLD) {
      sigaddset(&set, signal); // a blocked signal is queued even where it is ignored
    }
  }
  sigprocmask(SIG_BLOCK, &set, &previous_);
  fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd_ < 0) {
    throw EnvironmentError("cannot wait for signals: signalfd: {}", std::strerror(errno));
  }
}

SignalQueue::~SignalQueue() {
  while (next() != 0) {
  }
  close(fd_);
  sigprocmask(SIG_SETMASK, &previous_, nullptr);
}

int SignalQueue::next(pid_t* sender) const {
  signalfd_siginfo info{};
  if (read(fd_, &info, sizeof info) != sizeof info) {
    return 0;
  }
  if (sender != nullptr) {
    *sender = static_cast<pid_t>(info.ssi_pid);
  }
  return static_cast<int>(info.ssi_signo);
}

} // namespace palimpsest
