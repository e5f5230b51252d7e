#include <palimpsest/memory/planners/candidates.h>

#include <palimpsest/memory/planners/chain_run.h>

#include <utility>

namespace palimpsest {
namespace {

std::string describe(const CostChain& chain, const ChainRun& run) {
  const ChainOp op = run.operations[run.peak_operation];
  const std::string what = op.kind == ChainOpKind::kLoss ? "the loss"
      : op.kind == ChainOpKind::kBackward                ? "the backward of "
                                                         : "the forward of ";
  std::string stage;
  if (op.kind != ChainOpKind::kLoss) {
    const std::string& name = chain.stages[static_cast<size_t>(op.stage)].name;
    stage = fmt::format("stage {}{}", op.stage + 1, name.empty() ? "" : " (" + name + ")");
  }
  const ChainBytes& bytes = run.at_peak;
  return fmt::format(
      "{}{} needs them: {} for the chain's input, {} for kept outputs, {} for tapes, {} for "
      "gradients, {} for workspace",
      what,
      stage,
      bytes.input,
      bytes.outputs,
      bytes.tapes,
      bytes.gradients,
      bytes.workspace);
}

} // namespace

int64_t Candidates::consider(Segments segments) {
  const ChainRun run = run_chain(chain_, segments);
  const ChainPlan plan{std::move(segments), run.makespan, run.peak, run.peak};
  if (run.peak <= budget_ && (!fastest_ || run.makespan < fastest_->makespan)) {
    fastest_ = plan;
  }
  if (!smallest_ || run.peak < smallest_->peak) {
    smallest_ = plan;
  }
  return run.peak;
}

ChainPlan Candidates::fastest(std::string_view planner) const {
  check(smallest_.has_value(), "{} considered no plan", planner);
  if (!fastest_) {
    const int64_t least = smallest_->peak;
    throw InfeasibleBudget(
        least,
        fmt::format(
            "{}: a budget of {} bytes is too small; it needs at least {} bytes, since {}",
            planner,
            budget_,
            least,
            describe(chain_, run_chain(chain_, smallest_->segments))));
  }
  ChainPlan plan = *fastest_;
  plan.least_budget = smallest_->peak;
  return plan;
}

} // namespace palimpsest
