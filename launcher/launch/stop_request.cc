#include <palimpsest/launcher/launch/stop_request.h>

#include <palimpsest/core/base/error.h>

#include <atomic>
#include <ctime>

namespace palimpsest {
namespace {

constexpr int kSignals[3] = {SIGTERM, SIGINT, SIGUSR1};

/// Demands that follow so soon are the first one again: launchers and `timeout` send one signal
/// twice, and what ends a job signals every process, whose launcher then passes it on. Somebody who
/// presses Ctrl-C twice means it.
double echo_seconds(int signal) {
  return signal == SIGTERM ? 5 : 0.5;
}

// A signal handler can reach nothing but statics.
std::atomic<bool> installed = false;
std::atomic<int> first_signal = 0;
std::atomic<double> first_demand = 0; // seconds; 0: none came
static_assert(std::atomic<int>::is_always_lock_free && std::atomic<double>::is_always_lock_free);

double now() {
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time); // async-signal-safe
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

void handle(int signal) {
  int none = 0;
  first_signal.compare_exchange_strong(none, signal);
  if (signal == SIGUSR1) { // schedulers send it as often as they like
    return;
  }
  double never = 0;
  if (!first_demand.compare_exchange_strong(never, now()) &&
      now() - first_demand > echo_seconds(signal)) {
    std::signal(signal, SIG_DFL);
    std::raise(signal);
  }
}

} // namespace

StopRequest::StopRequest() {
  check(!installed.exchange(true), "two StopRequests at a time");
  first_signal = 0;
  first_demand = 0;
  struct sigaction action {};
  action.sa_handler = handle;
  // A read or write under way goes on; main's thread stays the one that signals are given to.
  action.sa_flags = SA_RESTART | SA_ONSTACK | SA_NODEFER;
  sigemptyset(&action.sa_mask);
  for (int i = 0; i < 3; ++i) {
    sigaction(kSignals[i], nullptr, &previous_[i]);
    if (previous_[i].sa_handler != SIG_IGN) { // nohup, or a shell's background job
      sigaction(kSignals[i], &action, nullptr);
    }
  }
}

StopRequest::~StopRequest() {
  for (int i = 0; i < 3; ++i) {
    sigaction(kSignals[i], &previous_[i], nullptr);
  }
  installed = false;
}

bool StopRequest::requested() const {
  return signal() != 0;
}

int StopRequest::signal() const {
  return first_signal;
}

} // namespace palimpsest
