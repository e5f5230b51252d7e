#include <palimpsest/launcher/launch/lifeline.h>

#include <palimpsest/core/base/error.h>

#include <fmt/format.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace palimpsest {
namespace {

constexpr int kLookMilliseconds = 500; // at processes without a descriptor

bool is_gone(pid_t process) {
  return kill(process, 0) != 0 && errno == ESRCH;
}

} // namespace

std::vector<pid_t> launchers_of(const RankEnvironment& ranks) {
  std::vector<pid_t> launchers;
  if (ranks.parent_is_launcher) {
    launchers.push_back(getppid());
  }
  if (ranks.launcher_pid != 0 && (launchers.empty() || launchers[0] != ranks.launcher_pid)) {
    launchers.push_back(ranks.launcher_pid);
  }
  return launchers;
}

ProcessWatch::ProcessWatch(std::vector<pid_t> processes) : processes_(std::move(processes)) {
  for (const pid_t process : processes_) {
    // By number: older C libraries have no function for it.
    fds_.push_back(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  }
}

ProcessWatch::~ProcessWatch() {
  for (const int fd : fds_) {
    if (fd >= 0) {
      close(fd);
    }
  }
}

pid_t ProcessWatch::wait(int wake_fd) const {
  std::vector<pollfd> polled;
  bool all_have_descriptors = true;
  for (const int fd : fds_) {
    polled.push_back({.fd = fd, .events = POLLIN, .revents = 0}); // poll() skips -1
    all_have_descriptors &= fd >= 0;
  }
  polled.push_back({.fd = wake_fd, .events = POLLIN, .revents = 0});
  while (true) {
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (fds_[i] < 0 && is_gone(processes_[i])) {
        return processes_[i];
      }
    }
    poll(polled.data(), polled.size(), all_have_descriptors ? -1 : kLookMilliseconds);
    for (size_t i = 0; i < processes_.size(); ++i) {
      if (polled[i].revents != 0) {
        return processes_[i];
      }
    }
    if (polled.back().revents != 0) {
      return 0;
    }
  }
}

Lifeline::Lifeline(std::vector<pid_t> launchers) : watch_(launchers) {
  if (launchers.empty()) {
    return;
  }
  wake_ = eventfd(0, EFD_CLOEXEC);
  if (wake_ < 0) {
    throw EnvironmentError("cannot watch the launcher: eventfd: {}", std::strerror(errno));
  }
  // Signals are for the threads that work.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] {
    const pid_t gone = watch_.wait(wake_);
    if (gone != 0) {
      const std::string message =
          fmt::format("palimpsest: the launcher (process {}) is gone; this rank ends\n", gone);
      [[maybe_unused]] const ssize_t written = write(2, message.data(), message.size());
      kill(getpid(), SIGKILL);
    }
  });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

Lifeline::~Lifeline() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(wake_, &one, sizeof one);
    thread_.join();
    close(wake_);
  }
}

} // namespace palimpsest
