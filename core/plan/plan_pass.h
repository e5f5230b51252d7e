#pragma once

// The contract of strategies: a pure function from the plans of the pipeline ranks to plans that do
// more.
//
//   Plans with_gathers = gather_pass(plans, job, options);
//
// Passes share only the vocabulary of operations and slots; they never call or know of each other.
// Every rank can apply every pass to all ranks' plans and gets the same. Plans leak by construction
// until drop_pass, so verify (simulate.h) what is complete.

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>
#include <palimpsest/core/plan/segment.h>

#include <cstdint>
#include <string_view>
#include <vector>

namespace palimpsest {

/// What the passes may be told. Nothing here changes the numbers of a step.
struct PlanOptions {
  Segments segments{}; ///< which tapes are left, which blocks run again
  int64_t window =
      0; ///< bytes of parameters that may stay gathered; one operation's own units always fit
  int read_ahead = 1; ///< how many timed operations ahead of its use a slot is fetched
  int lag = 1; ///< timed operations by which the DROP of a slot with an asynchronous reader waits
};

struct PlanPass {
  std::string_view name;
  Plans (*apply)(const Plans& plans, const Job& job, const PlanOptions& options);
};

/// What a pass inserts into one plan: operations before and after operation number `index`.
class Insertions {
 public:
  explicit Insertions(size_t size) : before_(size), after_(size) {}
  void before(size_t index, const Op& op) {
    before_[index].push_back(op);
  }
  void after(size_t index, const Op& op) {
    after_[index].push_back(op);
  }
  StepPlan into(const StepPlan& plan) const;

 private:
  std::vector<std::vector<Op>> before_;
  std::vector<std::vector<Op>> after_;
};

} // namespace palimpsest
