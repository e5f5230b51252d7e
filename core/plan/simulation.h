#pragma once

// The interpreter behind simulate(); private to core/plan.
//
//   PlanReport report = Simulation(plans, job, budget).run();
//   Simulation(plans, job, {}, {.rank = 0, .to = &timeline}).run();
//   Simulation(plans, job, seconds).run();                   // one rank of each pipeline rank (lockstep.h)
//
// Ranks run in turn, each until it has to wait: an operation waits until its operands have arrived,
// AGREE for all REDUCEs, DROP and in-place changes also for outstanding asynchronous readers.
// simulation.cc interprets, rules.cc holds the rules of single kinds, estimate.cc bytes of
// workspace and seconds.

#include <palimpsest/core/plan/compiled_plan.h>
#include <palimpsest/core/plan/contributions.h>
#include <palimpsest/core/plan/lockstep.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/core/plan/timeline.h>

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest {

class Simulation {
 public:
  /// Of whom a timeline is wanted, and where it goes.
  struct Traced {
    int rank = 0;
    Timeline* to = nullptr;
  };

  Simulation(
      const WorldPlans& plans,
      const Job& job,
      const PlanBudget& budget,
      Traced traced = {0, nullptr});
  Simulation(const Plans& plans, const Job& job, LinkSeconds seconds);
  PlanReport run();

 private:
  /// Of a state: from before the step, updated in this rank's part only, updated as a whole.
  enum class Age : uint8_t { kNone, kOld, kPartial, kNew };

  /// A node of the time graph, by number. `done`: all parties have issued it, so that whoever waits
  /// for it will not wait for ever.
  struct Event {
    double seconds = 0;
    bool done = true;
  };
  static constexpr int kNoEvent = -1;

  /// A place that is, or was, live.
  struct Copy {
    bool live = false;
    bool spent = false;
    bool lean = false;
    Age age = Age::kNone;
    int ready = 0; // event
    int64_t bytes = 0;
    Contributions content;
    std::vector<int> readers; // events, asynchronous ones
  };

  struct Rank {
    int number = 0;
    int data = 0;
    const CompiledPlan* compiled = nullptr;
    size_t next = 0;
    std::vector<Copy> copies; // by place number
    TierBytes used{};
    EnumArray<TierId, EnumArray<SlotKind, int64_t, kSlotKinds>, kTiers> held{};
    std::vector<std::pair<int, int64_t>>
        scratch; // workspace of communication in flight: event, bytes
    EnumArray<Lane, int, kLanes> lanes{}; // last event of each
    int issued = kNoEvent; // what every later operation's issue waits for
    std::vector<int> met; // collectives so far, by the rank's groups
    int agreed = kNoEvent;
    bool committed = false;
    std::vector<bool> losses; // by micro-batch
    std::vector<bool> ran; // by block and micro-batch
    RankReport report;

    const Op& op() const {
      return compiled->plan()[next];
    }
    bool finished() const {
      return next == compiled->plan().size();
    }
  };

  /// A collective under way.
  struct Meeting {
    Op op;
    int event = 0;
    std::vector<int> came; // ranks
  };
  struct GroupState {
    RankGroup group;
    size_t present = 0; // how many of its ranks are simulated
    std::vector<Meeting> meetings;
  };
  struct Transfer {
    int event = 0;
    int place = 0;
    Slot slot{};
  };
  struct Channel {
    std::vector<Transfer> sends;
    std::vector<Transfer> receives;
  };

  // ---- simulation.cc
  void begin(const WorldPlans& plans);
  void begin_rank(int number, const CompiledPlan& compiled, int start);
  Rank& rank_of(int number) {
    return ranks_[static_cast<size_t>(number / peers_)];
  }
  bool issue(Rank& rank);
  void wait_for_operands(const Rank& rank);
  void start(Rank& rank, int event);
  void accumulate(Rank& rank, int event);
  void finish(Rank& rank, int event, bool started);
  void charge(Rank& rank, int place, int64_t bytes);
  int64_t measure(Rank& rank, int64_t workspace);
  void record(const Rank& rank, int event);
  int new_event(double seconds, bool done);
  void order(int before, int after);
  int enter(Rank& rank);
  int meet(Rank& rank);
  void deliver(Rank& rank, int event);
  void transfer(const Rank& rank, int from, const Transfer& sent, int to, const Transfer& received);
  void combine(const Rank& rank, const Meeting& meeting);
  int group_number(const Rank& rank, const Op& op, int& own) const;
  Copy& copy_of(Rank& rank, SlotKind kind, int unit);
  void add(Contributions& target, const Contributions& more, const Rank& rank) const;
  [[noreturn]] void fail(const Rank& rank, const std::string& rule) const;

  // ---- rules.cc
  void check_rules(Rank& rank);
  void check_forward(Rank& rank);
  void check_backward(Rank& rank);
  void check_compute(const Rank& rank) const;
  void check_drop(const Rank& rank) const;
  void check_reduce(Rank& rank);
  void check_agree(Rank& rank);
  void check_update(Rank& rank);
  void check_commit(Rank& rank);
  void check_budget(const Rank& rank) const;
  void check_end(const Rank& rank) const;
  bool complete(const Contributions& content, int unit) const;
  size_t contribution(int unit, int block, int data, int mb) const;

  // ---- estimate.cc
  std::optional<Lane> lane(const Op& op) const;
  double cost(const Rank& rank, const Op& op) const;
  bool reads_lean_tape(const Rank& rank, const Op& op) const;
  int64_t workspace(const Rank& rank, const Op& op, bool started) const;
  void count_flops(Rank& rank);
  std::vector<double> end_times() const;

  const Job& job_;
  const PlanBudget budget_;
  Traced traced_;
  const int peers_; // world ranks that each of ranks_ stands for: itself and those after it
  const LinkSeconds seconds_; // of communication; none: the job's links say
  std::vector<int> traced_events_; // of the traced rank's operations
  std::vector<CompiledPlan> compiled_;
  std::vector<Rank> ranks_;
  std::vector<Event> events_;
  std::vector<std::pair<int, int>> order_; // edges of the time graph
  std::vector<int> waits_; // of the operation being issued
  std::vector<GroupState> groups_;
  std::vector<int> tie_class_; // by unit: units with the same tie ranks share a group
  int tie_classes_ = 0;
  std::map<std::pair<int, int>, Channel> channels_; // by (from, to)
};

} // namespace palimpsest
