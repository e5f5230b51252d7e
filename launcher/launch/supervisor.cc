#include <palimpsest/launcher/launch/supervisor.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/launch/lifeline.h>
#include <palimpsest/launcher/launch/processes.h>
#include <palimpsest/launcher/launch/rank_output.h>
#include <palimpsest/launcher/launch/spawn.h>
#include <palimpsest/launcher/launch/stop_request.h>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>

namespace palimpsest {
namespace {

FileDescriptor open_report(const Environment& environment) {
  const auto path = environment.find(kReportVariable);
  if (path == environment.end()) {
    throw UserError("--as-rank is for the processes of `palimpsest launch` alone");
  }
  FileDescriptor report(open(path->second.c_str(), O_WRONLY | O_CLOEXEC));
  if (report.get() < 0) {
    throw EnvironmentError(
        "cannot report to the launcher at {}: {}", path->second, std::strerror(errno));
  }
  return report;
}

/// Waits for the rank's end, or brings it about. SIGTERM from mpirun is no request to stop: some
/// process has failed, and mpirun kills the others a moment later.
int status_of(pid_t rank, pid_t mpirun, const ProcessWatch& launchers, const SignalQueue& signals) {
  while (true) {
    if (launchers.wait(signals.fd()) != 0) {
      kill(-rank, SIGKILL);
      int status = 0;
      waitpid(rank, &status, 0);
      return status;
    }
    int status = 0;
    pid_t sender = 0;
    while (const int signal = signals.next(&sender)) {
      if (signal == SIGCHLD) {
        if (waitpid(rank, &status, WNOHANG) == rank) {
          kill(-rank, SIGKILL); // what it has started and left behind
          return status;
        }
      } else if (signal != SIGTERM || sender != mpirun) {
        kill(rank, signal);
      }
    }
  }
}

} // namespace

void supervise_rank(const Environment& environment) {
  const RankEnvironment ranks = detect_rank(environment);
  const FileDescriptor report = open_report(environment);
  const ProcessWatch launchers({getppid(), ranks.launcher_pid});
  const SignalQueue signals({SIGCHLD, SIGTERM, SIGINT, SIGUSR1});
  prctl(PR_SET_PDEATHSIG, 0); // from here on we watch, and take the rank along
  const pid_t self = getpid();
  const pid_t rank = fork();
  if (rank < 0) {
    throw EnvironmentError("cannot start rank {}: {}", ranks.rank, std::strerror(errno));
  }
  if (rank == 0) {
    begin_child(self, SIGKILL);
    redirect_output(environment, ranks.rank);
    return;
  }
  setpgid(rank, rank);
  if (ranks.listen_fd >= 0) {
    close(ranks.listen_fd); // or peers would wait for a rank 0 that is gone
  }
  const auto tell = [&](bool ended, int status) {
    rusage used{}; // of the children that were waited for: the rank, once it has ended
    getrusage(RUSAGE_CHILDREN, &used);
    const RankEvent event = {ranks.rank, rank, ended, status, int64_t{1024} * used.ru_maxrss};
    [[maybe_unused]] const ssize_t written = write(report.get(), &event, sizeof event);
  };
  tell(false, 0);
  const int status = status_of(rank, ranks.mpi_launched ? getppid() : 0, launchers, signals);
  tell(true, status);
  const int code = exit_code_of(status);
  _exit(code == kStoppedExitCode ? 0 : code);
}

} // namespace palimpsest
