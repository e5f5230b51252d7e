#pragma once

// Child processes that cannot outlive us.
//
//   const pid_t child = spawn({"/bin/sleep", "9"}, environment, SIGKILL, [] { ... });
//   kill(-child, SIGKILL);                      // it leads a process group of its own

#include <palimpsest/launcher/launch/rank_environment.h>

#include <sys/types.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace palimpsest {

/// Starts a program. The child leads a process group of its own, has all signals unblocked, and gets
/// `death_signal` when this process (its calling thread) ends. `prepare` runs in the child before the
/// program does. Where that throws or the program cannot be run, the child says so on its standard
/// error and ends with 127.
pid_t spawn(
    const std::vector<std::string>& command,
    const Environment& environment,
    int death_signal,
    const std::function<void()>& prepare);

/// What spawn() does first in the child of a fork. `parent`: the process that forked.
void begin_child(pid_t parent, int death_signal);

/// What a shell would call the end that waitpid() gave as `status`: the exit code, 128+n for signal n.
int exit_code_of(int status);

/// Signals as something to poll: blocked for this process, read from fd(). Those that this process
/// was started to ignore (nohup) stay ignored. The destructor restores the mask.
class SignalQueue {
 public:
  explicit SignalQueue(const std::vector<int>& signals);
  SignalQueue(const SignalQueue&) = delete;
  SignalQueue& operator=(const SignalQueue&) = delete;
  ~SignalQueue();

  int fd() const {
    return fd_;
  }
  /// The next signal that came, and who sent it; 0: none.
  int next(pid_t* sender = nullptr) const;

 private:
  int fd_;
  sigset_t previous_;
};

} // namespace palimpsest
