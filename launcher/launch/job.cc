#include <palimpsest/launcher/launch/job.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/port.h>
#include <palimpsest/launcher/launch/processes.h>
#include <palimpsest/launcher/launch/rank_output.h>
#include <palimpsest/launcher/launch/spawn.h>
#include <palimpsest/launcher/launch/stop_request.h>

#include <fmt/ranges.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <optional>

namespace palimpsest {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLastWords{1}; // of the ranks that did not fail first
constexpr seconds kEndOfMpirun{3};
constexpr seconds kBetweenKills{2};
constexpr int kKills = 3;
/// `timeout` and other wrappers send one signal twice: to their child and to its process group.
constexpr milliseconds kEcho{500};
/// Ranks that lose a peer end soon after it, and may be seen to end before it.
constexpr milliseconds kSameMoment{300};
constexpr int kEnvironmentExitCode = 1;
constexpr int kRefusedExitCode = 2;

/// The system kills without a word whom it takes memory from.
std::string describe_end(int status, int64_t peak_rss = 0) {
  if (WIFSIGNALED(status)) {
    const bool killed = WTERMSIG(status) == SIGKILL && peak_rss > 0;
    return fmt::format(
        "was ended by signal {} ({}){}",
        WTERMSIG(status),
        strsignal(WTERMSIG(status)),
        killed
            ? fmt::format(", possibly for want of memory: it held up to {}", format_bytes(peak_rss))
            : "");
  }
  return fmt::format("ended with exit code {}", WEXITSTATUS(status));
}

class Job {
 public:
  Job(const LaunchPlan& plan, const LaunchOptions& options, Environment environment)
      : plan_(plan), options_(options),
        signals_({SIGCHLD, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGWINCH}),
        output_(options.log_folder, plan.world_size()),
        mpirun_log_(options.log_folder / "mpirun.log"), statuses_(plan.ranks.size()),
        started_(plan.ranks.size()) {
    remove_rank_variables(environment);
    // Rank 0 inherits it. mpirun passes no sockets on: there it shows that the port is free now, and
    // ranks that talk over MPI do not use it.
    const ListeningSocket socket(plan.port);
    environment[kLauncherPidVariable] = std::to_string(getpid());
    environment["MASTER_ADDR"] = plan.address;
    environment["MASTER_PORT"] = std::to_string(socket.port());
    if (!plan.visible_devices.empty()) {
      environment["CUDA_VISIBLE_DEVICES"] = plan.visible_devices;
    }
    output_.tell(environment);
    ranks_.emplace(plan, options, std::move(environment), socket.fd(), mpirun_log_);
  }

  void run() {
    while (!ranks_->finished()) {
      wait();
      while (const int signal = signals_.next()) {
        note_signal(signal);
      }
      for (const RankEvent& event : ranks_->events()) {
        note(event);
      }
      if (deadline_ && Clock::now() >= *deadline_) {
        kill_ranks();
      }
    }
    output_.drain();
    conclude();
  }

 private:
  struct Failure {
    RankEvent event;
    Clock::time_point time;
  };

  void wait() {
    std::vector<pollfd> polled = output_.polled();
    polled.push_back({.fd = signals_.fd(), .events = POLLIN, .revents = 0});
    polled.push_back({.fd = ranks_->event_fd(), .events = POLLIN, .revents = 0});
    int timeout = -1;
    if (deadline_) {
      const auto left = std::chrono::ceil<milliseconds>(*deadline_ - Clock::now());
      timeout = static_cast<int>(std::max<int64_t>(0, left.count()));
    }
    if (poll(polled.data(), polled.size(), timeout) > 0) {
      output_.serve(polled);
    }
  }

  void note_signal(int signal) {
    if (signal == SIGCHLD) {
      return;
    }
    if (signal == SIGWINCH) {
      output_.resize();
      return;
    }
    if (stop_signal_ == 0) {
      stop_signal_ = signal;
      say("{}: asked all ranks to save and end, for which they have {} s; a second signal ends "
          "them at once",
          strsignal(signal),
          options_.grace.count());
      ranks_->signal(SIGTERM);
      end_by(Clock::now() + options_.grace);
      first_signal_time_ = Clock::now();
    } else if (second_signal_ == 0 && Clock::now() - first_signal_time_ > kEcho) {
      second_signal_ = signal;
      end_by(Clock::now());
    }
  }

  void note(const RankEvent& event) {
    if (!event.ended) {
      started_[static_cast<size_t>(event.rank)] = true;
      if (stop_signal_ != 0) {
        kill(event.pid, SIGTERM); // it was not there yet when the others were asked
      }
      return;
    }
    if (event.rank == kMpirun) {
      mpirun_status_ = event.status;
      return;
    }
    statuses_[static_cast<size_t>(event.rank)] = event.status;
    const int code = exit_code_of(event.status);
    if (code == kStoppedExitCode) {
      stopped_ = true;
      end_by(Clock::now() + options_.grace);
    } else if (code != 0 && kills_ == 0) {
      failures_.push_back(event);
      note_failure(event);
    }
    if (std::all_of(statuses_.begin(), statuses_.end(), [](const auto& s) { return s; })) {
      end_by(Clock::now() + kEndOfMpirun);
    }
  }

  void note_failure(const RankEvent& event) {
    const int code = exit_code_of(event.status);
    const bool first_only_lost_its_peer = failure_ &&
        exit_code_of(failure_->event.status) == kEnvironmentExitCode &&
        code != kEnvironmentExitCode && code != 128 + SIGABRT &&
        Clock::now() - failure_->time < kSameMoment;
    if (!failure_ || first_only_lost_its_peer) {
      failure_ = {event, failure_ ? failure_->time : Clock::now()};
      end_by(Clock::now() + kLastWords);
    }
  }

  void end_by(Clock::time_point time) {
    deadline_ = deadline_ ? std::min(*deadline_, time) : time;
  }

  void kill_ranks() {
    if (kills_ == 0 && !failure_ && second_signal_ == 0) {
      for (size_t rank = 0; rank < statuses_.size(); ++rank) {
        if (!statuses_[rank]) {
          late_.push_back(static_cast<int>(rank));
        }
      }
    }
    if (kills_ == kKills) {
      throw EnvironmentError(
          "the ranks were killed but do not end; look for processes with {}={}",
          kLauncherPidVariable,
          getpid());
    }
    ++kills_;
    ranks_->kill_all();
    deadline_ = Clock::now() + kBetweenKills;
  }

  void conclude() const {
    if (second_signal_ != 0) {
      throw Error(
          fmt::format("ended at once by a second signal ({})", strsignal(second_signal_)),
          128 + second_signal_);
    }
    if (failure_) {
      const RankEvent& event = speaker();
      throw Error(describe(event), exit_code_of(event.status));
    }
    if (!late_.empty()) {
      throw Error(
          fmt::format(
              "{} {} did not end within {} s of the request to stop and {} killed; give more "
              "time with --grace",
              late_.size() == 1 ? "rank" : "ranks",
              fmt::join(late_, ", "),
              options_.grace.count(),
              late_.size() == 1 ? "was" : "were"),
          128 + SIGKILL);
    }
    const bool all_told =
        std::all_of(statuses_.begin(), statuses_.end(), [](const auto& s) { return s; });
    if (!all_told) {
      throw Error(
          fmt::format(
              "{} {}{}; it said:\n{}",
              plan_.mpirun.path,
              describe_end(mpirun_status_),
              lost_with_mpirun(),
              read_file(mpirun_log_)),
          std::max(1, exit_code_of(mpirun_status_)));
    }
    if (stopped_) {
      throw Error("all ranks have stopped on request", kStoppedExitCode);
    }
  }

  /// Ranks whose supervisors were killed, by mpirun or before it.
  std::string lost_with_mpirun() const {
    std::vector<size_t> lost;
    for (size_t rank = 0; rank < statuses_.size(); ++rank) {
      if (started_[rank] && !statuses_[rank]) {
        lost.push_back(rank);
      }
    }
    return lost.empty() ? " before its ranks began"
                        : fmt::format(
                              ", and nobody could tell how {} {} ended",
                              lost.size() == 1 ? "rank" : "ranks",
                              fmt::join(lost, ", "));
  }

  /// Of ranks that end alike one may have the word for all, and be seen to end after another.
  const RankEvent& speaker() const {
    const RankEvent& first = failure_->event;
    const auto says = [&](const RankEvent& event) { return !output_.tail(event.rank).empty(); };
    const auto other = std::ranges::find_if(failures_, [&](const RankEvent& event) {
      return event.status == first.status && says(event);
    });
    const bool left_it = !WIFSIGNALED(first.status) && !says(first) && other != failures_.end();
    return left_it ? *other : first;
  }

  std::string describe(const RankEvent& event) const {
    const PlannedRank& rank = plan_.ranks[static_cast<size_t>(event.rank)];
    std::string text = fmt::format(
        "rank {} of {} (host {}, process {}) {}",
        event.rank,
        plan_.world_size(),
        rank.host,
        event.pid,
        describe_end(event.status, event.peak_rss));
    if (stop_signal_ != 0 && WIFSIGNALED(event.status) && WTERMSIG(event.status) == SIGTERM) {
      text += ", asked to stop before it could save";
    }
    const std::string log = log_of(options_.log_folder, event.rank).string();
    const std::string tail = output_.tail(event.rank);
    if (tail.empty()) {
      return text + "; it printed nothing";
    }
    if (output_.is_on_screen(tail)) { // a refusal is all that there is to read
      const bool refused = exit_code_of(event.status) == kRefusedExitCode;
      return text + "; what it printed is above" + (refused ? "" : ", and in " + log);
    }
    return text + "; the end of " + log + ":\n" + tail.substr(0, tail.size() - 1);
  }

  template <typename... Args>
  void say(fmt::format_string<Args...> format, Args&&... args) const {
    const std::string text =
        "palimpsest: " + fmt::format(format, std::forward<Args>(args)...) + "\n";
    std::fputs(text.c_str(), stderr);
  }

  const LaunchPlan& plan_;
  const LaunchOptions& options_;
  SignalQueue signals_;
  RankOutput output_;
  std::filesystem::path mpirun_log_;
  std::optional<RankProcesses> ranks_;

  std::vector<std::optional<int>> statuses_; // by rank, once it has ended
  std::vector<bool> started_; // by rank
  std::vector<RankEvent> failures_; // before anything was killed
  std::optional<Failure> failure_; // the first, or what is behind it
  bool stopped_ = false; // a rank said that it stopped on request
  int stop_signal_ = 0;
  Clock::time_point first_signal_time_;
  int second_signal_ = 0;
  int mpirun_status_ = 0;
  std::vector<int> late_; // ranks that did not end in time after a request to stop
  std::optional<Clock::time_point> deadline_;
  int kills_ = 0;
};

} // namespace

void run_job(const LaunchPlan& plan, const LaunchOptions& options, Environment environment) {
  for (const PlannedRank& rank : plan.ranks) {
    if (plan.is_remote(rank)) {
      throw UserError(
          "host {}: launch starts ranks on this host ({}) alone; start them there with mpirun, "
          "srun or torchrun (palimpsest launch --dry-run shows the plan)",
          rank.host,
          plan.this_host);
    }
  }
  Job(plan, options, std::move(environment)).run();
}

} // namespace palimpsest
