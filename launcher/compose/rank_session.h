#pragma once

// This process as one of the ranks of a run: found, connected, and ended as one of them.
//
//   RankSession session(detect_rank(current_environment(), flags), config, version);
//   return session.run([&](Ranks& ranks) {        // the exit code
//     Run run(config, ranks);
//     ...
//     return 0;
//   });
//
// An error that all ranks share is printed by rank 0 alone. One that a rank meets by itself ends the
// others' communication, so that nobody waits for it.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/launcher/compose/ranks.h>
#include <palimpsest/launcher/launch/lifeline.h>
#include <palimpsest/launcher/launch/rank_environment.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/parallel/comm/rank_status.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>

namespace palimpsest {

/// Whether ranks of this build that mpirun starts talk through MPI.
bool can_use_mpi();

/// The end of a rank that leaves the error to another one, which may need a moment: launchers end
/// all ranks at the first failure. The exit code.
int leave_word_to_others(const Error& error);

/// What a request to stop does: the work ends where it can go on from, or there is nothing to save.
enum class OnSignal { kStopWhereSafe, kEndAtOnce };

class RankSession {
 public:
  /// Connects this rank (detect_rank()) to the others. EnvironmentError where they do not come.
  /// `build` names this program's.
  RankSession(
      RankEnvironment environment,
      RunConfig config,
      std::string build,
      OnSignal on_signal = OnSignal::kStopWhereSafe);

  /// Compares build and config with the other ranks', a UserError naming the first difference; then
  /// what `body` returns, or the exit code of an error that another rank tells.
  int run(const std::function<int(Ranks& ranks)>& body);

  /// Tells the others where this rank is, if they should wait for it in vain. `step`: the first that
  /// it will see, from 1.
  Observer& status(int64_t step);
  const RankEnvironment& environment() const {
    return environment_;
  }

 private:
  void compare_ranks(Ranks& ranks) const;

  RunConfig config_;
  std::string build_;
  RankEnvironment environment_;
  std::optional<StopRequest> stop_;
  Lifeline lifeline_;
  std::shared_ptr<RankStatus> status_;
  std::unique_ptr<Observer> status_observer_;
  std::unique_ptr<Communicator> world_; // null for a single process
};

} // namespace palimpsest
