// Covers: simulation.cc, rules.cc, estimate.cc, compiled_plan.cc, effects.cc

#include <palimpsest/core/plan/simulate.h>

#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace palimpsest::testing {
namespace {

using ::testing::HasSubstr;

/// Plans of a tied model on two stages of two ranks, to be broken on purpose.
class Refusal : public ::testing::Test {
 protected:
  using Change = std::function<void(StepPlan&)>;

  size_t index(int rank, OpKind kind, int nth = 0) const {
    std::vector<size_t> found;
    const StepPlan& plan = world_[static_cast<size_t>(rank)];
    for (size_t at = 0; at < plan.size(); ++at) {
      if (plan[at].kind == kind) {
        found.push_back(at);
      }
    }
    return nth >= 0 ? found.at(static_cast<size_t>(nth)) : found.back();
  }

  void refused(const char* message, const std::vector<int>& ranks, const Change& change) const {
    Plans broken = world_;
    for (const int rank : ranks) {
      change(broken[static_cast<size_t>(rank)]);
    }
    try {
      simulate_world(broken, example_.job);
      ADD_FAILURE() << "accepted: " << message;
    } catch (const PlanError& error) {
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }

  static Change erase(size_t at) {
    return [at](StepPlan& ops) { ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(at)); };
  }
  static Change move(size_t from, size_t to) {
    return [from, to](StepPlan& ops) {
      const Op op = ops[from];
      ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(from));
      ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(to), op);
    };
  }

  Case example_ = make({.model = "tied", .ranks = 2, .zero = 2, .shard = 2});
  Plans world_ = spread_copies(example_.plans(), example_.job.mesh());
  std::vector<int> first_{0, 1}; // the ranks of the first stage
  std::vector<int> second_{2, 3};
};

TEST_F(Refusal, EveryRuleHasItsMessage) {
  refused("is sent where", first_, erase(index(0, OpKind::kSend)));
  refused("is not live", first_, erase(index(0, OpKind::kRecv)));
  refused("before AGREE", first_, erase(index(0, OpKind::kAgree)));
  refused("not complete and reduced", {0, 1, 2, 3}, [](StepPlan& ops) {
    std::erase_if(ops, [](const Op& op) {
      return op.kind == OpKind::kReduce && op.axis == ReduceAxis::kTie;
    });
  });
  const auto buffer = std::find_if(world_[0].begin(), world_[0].end(), [](const Op& op) {
    return op.kind == OpKind::kDrop && op.slot.kind == SlotKind::kGradBuffer;
  });
  refused(
      "was used up",
      first_,
      move(static_cast<size_t>(buffer - world_[0].begin()), world_[0].size() - 1));
  refused("COMMIT is missing", first_, erase(index(0, OpKind::kCommit)));
  const Slot param{.kind = SlotKind::kParam, .owner = 0};
  refused(
      "left over", first_, [&](StepPlan& ops) { ops.push_back(Op::stash(param, TierId::kHost)); });
  refused("would overwrite", first_, [](StepPlan& ops) { ops.insert(ops.begin(), Op::load(0)); });
  const size_t one = index(1, OpKind::kPublish, 0);
  const size_t other = index(1, OpKind::kPublish, 1);
  refused("meets", {1}, [&](StepPlan& ops) {
    std::swap(ops[one], ops[other]);
    std::swap(ops[one - 1], ops[other - 1]); // their UPDATEs
  });
  refused("deadlock", second_, move(index(2, OpKind::kReduce, -1), index(2, OpKind::kSend, -1)));
  refused("computes after AGREE", first_, [](StepPlan& ops) {
    ops.push_back(Op::load(0));
    ops.push_back(Op::forward(0, 0, TapeMode::kNone, {0}));
  });
  refused("no such block", first_, [](StepPlan& ops) {
    ops.push_back(Op::forward(99, 0, TapeMode::kNone, {0}));
  });
  refused("no such slot", first_, [](StepPlan& ops) {
    ops.push_back(Op::drop({.kind = SlotKind::kTape, .owner = 1, .mb = 7}, TierId::kDevice));
  });
  refused("only values and their gradients are sent", first_, [&](StepPlan& ops) {
    ops.push_back(Op::send(param, 1));
  });
}

TEST(Simulate, ReproducibleSumsOfSeveralMicroBatchesAreRefused) {
  const Case example = make({.zero = 1, .shard = 2, .reproducible = true});
  Plans plans = example.plans();
  EXPECT_NO_THROW(simulate(plans, example.job));
  for (Op& op : plans[0]) {
    if (op.kind == OpKind::kReduce) {
      op.mbs = {0, 2};
    }
  }
  EXPECT_THAT(
      [&] { simulate(plans, example.job); },
      ::testing::ThrowsMessage<PlanError>(HasSubstr("one micro-batch at a time")));
}

TEST_F(Refusal, TheBudgetNamesTierAndBytes) {
  PlanBudget budget = promised(simulate_world(world_, example_.job));
  EXPECT_NO_THROW(simulate_world(world_, example_.job, budget));
  const int64_t peak = budget[2][TierId::kDevice]--;
  try {
    simulate_world(world_, example_.job, budget);
    ADD_FAILURE() << "accepted";
  } catch (const PlanError& error) {
    EXPECT_THAT(error.what(), HasSubstr("rank 2"));
    EXPECT_THAT(error.what(), HasSubstr("over budget on the device: " + std::to_string(peak)));
  }
}

TEST(Simulate, ReportsBytesAtEveryOperation) {
  // one block and a head; each operation's bytes counted by hand
  ModelCost model;
  model.batch_bytes = 10;
  model.units = {
      {.name = "w", .parameter_bytes = 100, .gradient_bytes = 200, .state_bytes = 400},
      {.name = "h", .parameter_bytes = 1000, .gradient_bytes = 2000, .state_bytes = 4000}};
  model.blocks.push_back(
      {.name = "block",
       .reads = {{kLoader, 0}},
       .value_bytes = {3},
       .units = {0},
       .full_bytes = 50,
       .forward_workspace = {1, 2, 5},
       .backward_workspace = {0, 6, 7},
       .forward_flops = 8,
       .backward_flops = 16});
  model.blocks.push_back(
      {.name = "head",
       .reads = {{0, 0}},
       .units = {1},
       .forward_workspace = {0, 0, 20},
       .forward_flops = 4,
       .backward_flops = 8});
  const Job job({.model = model, .stages = {{0, 2}}});
  const StepPlan plan = parse_plan(
      "LOAD mb=0\n"
      "FORWARD block=0 mb=0 tape=none yields={0}\n"
      "FORWARD block=1 mb=0 tape=full yields={}\n"
      "DROP slot=value(0,0,mb=0) tier=device\n"
      "FORWARD block=0 mb=0 tape=full yields={}\n"
      "BACKWARD block=0 mb=0 part=both\n"
      "DROP slot=tape(0,mb=0) tier=device\n"
      "DROP slot=value(loader,0,mb=0) tier=device\n"
      "DROP slot=grad(0,0,mb=0) tier=device\n"
      "AGREE\n"
      "UPDATE unit=0\n"
      "DROP slot=grad_buffer(0) tier=device\n"
      "UPDATE unit=1\n"
      "DROP slot=grad_buffer(1) tier=device\n"
      "COMMIT\n");
  const RankReport report = simulate(Plans{plan}, job).ranks[0];
  const int64_t states = 5500;
  const std::vector<int64_t> expected{
      states + 10, // LOAD
      states + 10 + 3 + 1, // value, workspace without a tape
      states + 13 + 3 + 2000 + 20, // grad of the value, the head's buffer, workspace
      states + 2016, // during DROP the value is still there
      states + 2013 + 50 + 5, // tape, workspace with it
      states + 2063 + 200 + 7, // the block's buffer
      states + 2263,
      states + 2213,
      states + 2203,
      states + 2200,
      states + 2200,
      states + 2200,
      states + 2000,
      states + 2000,
      states};
  EXPECT_EQ(report.device_bytes, expected);
  EXPECT_EQ(report.peak[TierId::kDevice], states + 2270);
  EXPECT_EQ(report.category[TierId::kDevice][PlanCategory::kWorkspace], 20);
  EXPECT_EQ(report.category[TierId::kDevice][PlanCategory::kTape], 50);
  EXPECT_EQ(
      std::accumulate(report.at_peak.begin(), report.at_peak.end(), int64_t{0}), states + 2270);
  EXPECT_EQ(report.activation_peak, 10 + 3 + 50);
  EXPECT_EQ(report.forwards, 3);
  EXPECT_EQ(report.reruns, 1);
  EXPECT_EQ(report.forward_flops, 12);
  EXPECT_EQ(report.backward_flops, 24);
  EXPECT_EQ(report.recompute_flops, 8);
  EXPECT_DOUBLE_EQ(report.recompute_share(), 8.0 / 44);
}

TEST(Simulate, CommunicationIsChargedToComputeUnlessItOverlaps) {
  Choice choice{.zero = 2, .shard = 2, .lag = 1, .links = {.communication = 0.1}};
  const Case apart = make(choice);
  choice.links.communication_overlaps = false;
  const Case charged = make(choice);
  const PlanReport one = simulate(apart.plans(), apart.job);
  const PlanReport other = simulate(charged.plans(), charged.job);
  const auto& busy = one.ranks[0].busy;
  EXPECT_GT(busy[Lane::kCommunication], 0);
  EXPECT_NEAR(
      other.ranks[0].busy[Lane::kCompute], busy[Lane::kCompute] + busy[Lane::kCommunication], 1e-9);
  EXPECT_EQ(other.ranks[0].busy[Lane::kCommunication], 0);
  EXPECT_NEAR(
      other.seconds, other.ranks[0].busy[Lane::kCompute], 1e-9); // one lane: no gaps, no overlap
  EXPECT_LT(one.seconds, other.seconds);
}

} // namespace
} // namespace palimpsest::testing
