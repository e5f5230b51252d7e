#pragma once

// An independent second opinion: executes plans on numbers instead of names, knowing nothing of the
// effects table.
//
//   Replay(world, job).states() == Replay(plain_world, plain_job).states();     // the same training step
//
// Gradients are sums of numbers, everything else is a mix that depends on all its parts.

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <cstdint>
#include <map>
#include <optional>
#include <stdexcept>
#include <unordered_map>
#include <vector>

namespace palimpsest::testing {

/// The plans cannot be executed: something is missing, or ranks wait for ever, or disagree about a
/// state.
class ReplayError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// (whether of the optimizer, unit) -> number.
using States = std::map<std::pair<bool, int>, uint64_t>;

class Replay {
 public:
  /// `world`: plans of all ranks. Throws ReplayError.
  Replay(const Plans& world, const Job& job);

  /// The states at the end, equal wherever they are held. Throws ReplayError where they are not, or
  /// where something else is left; `ignore_leaks` forgives the latter.
  States states(bool ignore_leaks = false) const;

 private:
  /// A number, or one that is still on its way: the n-th of a channel, to be added to `number`.
  struct Entry {
    uint64_t number = 0;
    int from = -1;
    size_t nth = 0;
  };
  struct Rank {
    const StepPlan* plan = nullptr;
    size_t next = 0;
    bool joined = false; // the collective it is at
    std::unordered_map<Place, Entry> data;
    std::map<RankGroup, int> turns;
    std::map<int, size_t> received; // by sender
  };

  bool step(int rank);
  bool compute(int rank, const Op& op);
  bool transfer(int rank, const Op& op);
  /// The number, or nothing while it is on its way.
  std::optional<uint64_t> get(int rank, const Slot& slot, TierId tier = TierId::kDevice);
  /// The sum over the group once all ranks are there.
  std::optional<uint64_t> together(int rank, const Op& op, uint64_t number);
  std::optional<std::vector<uint64_t>> inputs(int rank, const Op& op);

  const Job& job_;
  std::vector<Rank> ranks_;
  std::map<std::pair<int, int>, std::vector<uint64_t>> mail_;
  std::map<std::pair<RankGroup, int>, std::map<int, uint64_t>> board_;
};

} // namespace palimpsest::testing
