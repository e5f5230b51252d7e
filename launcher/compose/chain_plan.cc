#include <palimpsest/launcher/compose/chain_plan.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/memory/planners/chain.pb.h>
#include <palimpsest/memory/planners/chain_file.h>
#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/dynamic_programming.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/memory/planners/replay.h>

#include <google/protobuf/util/json_util.h>

#include <cmath>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string_view>

namespace palimpsest {
namespace {

constexpr std::string_view kOptimal = "dynamic_programming";

int64_t parse_budget(const std::string& text) {
  const std::optional<int64_t> bytes = parse_bytes(text);
  if (!bytes || *bytes == 0) {
    throw UserError(
        "--budget: '{}' is not allowed; give a size of at least 1: {}", text, kSizesAllowed);
  }
  return *bytes;
}

/// The plan said by two: planners by the chain's own model, simulate() by the executor's rules.
void check_by_replay(const CostChain& chain, const ChainPlan& plan) {
  const ChainReplay replay = replay_chain(chain, plan.segments);
  check(
      replay.peak == plan.peak,
      "a plan of {} bytes takes {} when replayed",
      plan.peak,
      replay.peak);
  check(
      std::abs(replay.makespan - plan.makespan) <= 1e-9 * plan.makespan,
      "a plan of {} s takes {} s when replayed",
      plan.makespan,
      replay.makespan);
}

/// The planner's plan. What the optimal one had to round, unless everything is kept, is said.
ChainPlan make_plan(
    const Planner& planner,
    const CostChain& chain,
    int64_t budget,
    ChainPlanReport& report) {
  if (planner.name != kOptimal) {
    return planner.plan(chain, budget);
  }
  const DynamicProgram program(chain, budget);
  ChainPlan plan = program.plan(budget);
  if (!plan.segments.empty() && program.rounds()) {
    report.set_slot_bytes(static_cast<double>(program.slot_bytes()));
  }
  return plan;
}

void add_operations(const CostChain& chain, const ChainPlan& plan, ChainPlanReport& report) {
  for (const ChainOp& op : run_chain(chain, plan.segments).operations) {
    ChainPlanReport::Operation& added = *report.add_operations();
    added.set_op(std::string(to_text(op.kind)));
    added.set_stage(op.kind == ChainOpKind::kLoss ? 0 : op.stage + 1);
    if (op.option >= 0) {
      const ChainStage& stage = chain.stages[static_cast<size_t>(op.stage)];
      added.set_tape(std::string(to_text(stage.tapes[static_cast<size_t>(op.option)].tape)));
    }
  }
}

std::string to_json(const ChainPlanReport& report) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.add_whitespace = true;
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(report, &text, options);
  check(status.ok(), "a chain's plan has no JSON: {}", std::string(status.message()));
  return text;
}

void print_text(const CostChain& chain, const ChainPlanReport& report, std::ostream& out) {
  out << fmt::format("planner       {}\n", report.planner());
  out << fmt::format("makespan      {}\n", report.makespan());
  out << fmt::format("peak          {} of a budget of {}\n", report.peak(), report.budget());
  out << fmt::format("least budget  {}\n", report.least_budget());
  if (report.has_slot_bytes()) {
    out << fmt::format(
        "slots         of {}: sizes were rounded up to them, so a faster plan may exist\n",
        report.slot_bytes());
  }
  for (const ChainPlanReport::Operation& op : report.operations()) {
    out << op.op();
    if (op.stage() > 0) {
      const std::string& name = chain.stages[static_cast<size_t>(op.stage()) - 1].name;
      out << ' ' << op.stage() << (name.empty() ? "" : " " + name);
    }
    out << (op.tape().empty() || op.tape() == "full" ? "" : " " + op.tape()) << '\n';
  }
}

} // namespace

void plan_chain(const ChainPlanOptions& options, std::ostream& out) {
  const int64_t budget = parse_budget(options.budget);
  const Planner planner = find_planner(options.planner);
  const CostChain chain = parse_chain(read_file(options.chain), options.chain);
  ChainPlanReport report;
  report.set_planner(planner.name);
  report.set_budget(static_cast<double>(budget));
  try {
    const ChainPlan plan = make_plan(planner, chain, budget, report);
    check_by_replay(chain, plan);
    report.set_feasible(true);
    report.set_least_budget(static_cast<double>(plan.least_budget));
    report.set_makespan(plan.makespan);
    report.set_peak(static_cast<double>(plan.peak));
    add_operations(chain, plan, report);
  } catch (const InfeasibleBudget& error) {
    report.set_feasible(false);
    report.set_least_budget(static_cast<double>(error.least()));
    if (options.json) {
      out << to_json(report);
    }
    throw;
  }
  if (options.json) {
    out << to_json(report);
  } else {
    print_text(chain, report, out);
  }
}

std::string measured_chain(const ModelCost& model) {
  return chain_json(chain_of(model));
}

} // namespace palimpsest
