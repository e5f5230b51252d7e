#include <palimpsest/launcher/launch/processes.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/spawn.h>
#include <palimpsest/launcher/launch/supervisor.h>

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

namespace palimpsest {
namespace {

/// The command that becomes a supervisor and its rank.
std::vector<std::string> supervised(const LaunchOptions& options) {
  std::vector<std::string> command = {options.command[0]};
  command.insert(command.end(), options.as_rank.begin(), options.as_rank.end());
  command.insert(command.end(), options.command.begin() + 1, options.command.end());
  return command;
}

/// In the child that becomes mpirun.
void write_to(const std::filesystem::path& log) {
  const int to = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644);
  const int from = open("/dev/null", O_RDONLY);
  if (to < 0 || from < 0 || dup2(from, 0) < 0 || dup2(to, 1) < 0 || dup2(to, 2) < 0) {
    throw EnvironmentError("cannot write {}: {}", log.string(), std::strerror(errno));
  }
}

} // namespace

RankProcesses::RankProcesses(
    const LaunchPlan& plan,
    const LaunchOptions& options,
    Environment environment,
    int listen_fd,
    const std::filesystem::path& mpirun_log)
    : ranks_(plan.ranks.size()) {
  int fds[2];
  if (pipe2(fds, O_CLOEXEC) != 0) {
    throw EnvironmentError("cannot open a pipe: {}", std::strerror(errno));
  }
  reports_ = FileDescriptor(fds[0]);
  report_ = FileDescriptor(fds[1]);
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  environment[kReportVariable] = fmt::format("/proc/{}/fd/{}", getpid(), fds[1]);
  const std::vector<std::string> command = supervised(options);
  if (plan.mpirun.kind == MpiKind::kNone) {
    start_supervisors(plan, command, environment, listen_fd);
  } else {
    // SIGTERM: mpirun then removes its files.
    mpirun_ =
        spawn(mpirun_command(plan.mpirun, plan.world_size(), command), environment, SIGTERM, [&] {
          write_to(mpirun_log);
        });
  }
}

void RankProcesses::start_supervisors(
    const LaunchPlan& plan,
    const std::vector<std::string>& command,
    const Environment& environment,
    int listen_fd) {
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    Environment variables = environment;
    variables["RANK"] = variables["LOCAL_RANK"] = std::to_string(rank);
    variables["WORLD_SIZE"] = variables["LOCAL_WORLD_SIZE"] = std::to_string(plan.world_size());
    if (rank == 0) {
      variables[kListenFdVariable] = std::to_string(listen_fd);
    }
    ranks_[static_cast<size_t>(rank)].supervisor = spawn(command, variables, SIGKILL, [&] {
      if (rank == 0) {
        fcntl(listen_fd, F_SETFD, 0); // kept over exec
      }
    });
  }
}

RankProcesses::~RankProcesses() {
  kill_all();
  kill_all();
  for (const Rank& rank : ranks_) {
    if (rank.supervisor != 0) {
      waitpid(rank.supervisor, nullptr, 0);
    }
  }
  if (mpirun_ != 0) {
    waitpid(mpirun_, nullptr, 0);
  }
}

std::vector<RankEvent> RankProcesses::events() {
  // Ends are looked at before reports are read: a process reports before it ends.
  std::vector<RankEvent> silent;
  int status = 0;
  for (size_t i = 0; i < ranks_.size(); ++i) {
    pid_t& supervisor = ranks_[i].supervisor;
    if (supervisor != 0 && waitpid(supervisor, &status, WNOHANG) == supervisor) {
      silent.push_back({static_cast<int>(i), supervisor, true, status, 0});
      supervisor = 0;
    }
  }
  const bool mpirun_ended = mpirun_ != 0 && waitpid(mpirun_, &status, WNOHANG) == mpirun_;

  std::vector<RankEvent> events;
  RankEvent event{};
  while (read(reports_.get(), &event, sizeof event) == sizeof event) {
    Rank& rank = ranks_.at(static_cast<size_t>(event.rank));
    rank.pid = event.ended ? 0 : event.pid;
    rank.ended = event.ended;
    events.push_back(event);
  }
  for (const RankEvent& end : silent) {
    Rank& rank = ranks_[static_cast<size_t>(end.rank)];
    if (!rank.ended) { // its supervisor was killed, or never ran
      rank.ended = true;
      rank.pid = 0;
      events.push_back(end);
    }
  }
  if (mpirun_ended) {
    kill_ranks(); // those whose supervisors were killed
    events.push_back({kMpirun, std::exchange(mpirun_, 0), true, status, 0});
  }
  return events;
}

bool RankProcesses::finished() const {
  return mpirun_ == 0 && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& rank) {
           return rank.supervisor == 0;
         });
}

void RankProcesses::signal(int number) {
  for (const Rank& rank : ranks_) {
    if (rank.pid != 0) {
      kill(rank.pid, number);
    }
  }
}

void RankProcesses::kill_ranks() {
  for (const Rank& rank : ranks_) {
    if (rank.pid != 0) {
      kill(-rank.pid, SIGKILL);
    }
  }
}

void RankProcesses::kill_all() {
  kill_ranks();
  for (const Rank& rank : ranks_) {
    if (rank.supervisor != 0 && (killed_ || rank.pid == 0)) {
      kill(-rank.supervisor, SIGKILL);
    }
  }
  if (mpirun_ != 0) {
    kill(killed_ ? -mpirun_ : mpirun_, killed_ ? SIGKILL : SIGTERM);
  }
  killed_ = true;
}

} // namespace palimpsest
