#include <palimpsest/memory/planners/revolve.h>

#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/memory/planners/replay.h>
#include <palimpsest/tests/memory/planners/chains.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <sstream>

namespace palimpsest::testing {
namespace {

/// n, s, repetition_r, min_advances, min_forwards_total, ...
std::vector<std::vector<int64_t>> published_rows() {
  std::ifstream file(PALIMPSEST_TEST_DATA "/planner/revolve_table.csv");
  std::vector<std::vector<int64_t>> rows;
  std::string line;
  std::getline(file, line); // the names
  while (std::getline(file, line)) {
    std::istringstream text(line);
    std::string cell;
    auto& row = rows.emplace_back();
    while (std::getline(text, cell, ',')) {
      row.push_back(std::stoll(cell));
    }
  }
  return rows;
}

/// Most inputs kept to run again from, at once, that of the chain included.
int most_kept(const ChainRun& run, int stages) {
  std::vector<bool> kept(static_cast<size_t>(stages), false);
  long most = 0;
  for (const ChainOp& op : run.operations) {
    if (op.kind == ChainOpKind::kKeepInput) {
      kept[static_cast<size_t>(op.stage)] = true;
    } else if (op.kind == ChainOpKind::kBackward) {
      kept[static_cast<size_t>(op.stage)] = false;
    }
    most = std::max(most, std::count(kept.begin(), kept.end(), true));
  }
  return static_cast<int>(most);
}

TEST(Revolve, CountsAsThePublishedTableByFormulaAndByRunningThePlan) {
  const auto rows = published_rows();
  ASSERT_EQ(rows.size(), 66);
  for (const auto& row : rows) {
    const auto steps = static_cast<int>(row[0]);
    const auto kept = static_cast<int>(row[1]);
    SCOPED_TRACE(::testing::Message() << steps << " steps, " << kept << " kept");
    EXPECT_EQ(revolve_repetition(steps, kept), row[2]);
    EXPECT_EQ(revolve_advances(steps, kept), row[3]);
    const ChainRun run =
        run_chain(equal_chain(steps, 1, 1), revolve_segments({0, steps}, kept, TapeMode::kFull));
    const auto count = [&](auto matches) {
      return std::count_if(run.operations.begin(), run.operations.end(), matches);
    };
    EXPECT_EQ(count([](const ChainOp& op) { return op.kind < ChainOpKind::kTape; }), row[3]);
    EXPECT_EQ(count([](const ChainOp& op) { return op.kind <= ChainOpKind::kTape; }), row[4]);
    EXPECT_EQ(count([](const ChainOp& op) { return op.kind == ChainOpKind::kTape; }), steps);
    EXPECT_LE(most_kept(run, steps), kept);
  }
}

TEST(Revolve, SimulateCountsTheSameForwards) {
  for (const auto& row : published_rows()) {
    if (row[4] > 500) {
      continue;
    }
    const auto steps = static_cast<int>(row[0]);
    const ChainReplay replay = replay_chain(
        equal_chain(steps, 1, 1),
        revolve_segments({0, steps}, static_cast<int>(row[1]), TapeMode::kFull));
    const auto forwards = std::count_if(replay.plan.begin(), replay.plan.end(), [&](const Op& op) {
      return op.kind == OpKind::kForward && op.block % 2 == 0 && op.block < 2 * steps;
    });
    EXPECT_EQ(forwards, row[4]);
    EXPECT_EQ(replay.makespan, static_cast<double>(row[4] + 2 * steps)); // BACKWARDs take 2
  }
}

/// No plan of equal steps with one tape at a time has fewer: the recursion over all first splits.
TEST(Revolve, NoSplitHasFewer) {
  constexpr int kMost = 30;
  std::vector<std::vector<int64_t>> fewest(
      kMost + 1, std::vector<int64_t>(kMost + 1, int64_t{1} << 40));
  for (int kept = 1; kept <= kMost; ++kept) {
    fewest[1][static_cast<size_t>(kept)] = 0;
    for (size_t steps = 2; steps <= kMost; ++steps) {
      int64_t& best = fewest[steps][static_cast<size_t>(kept)];
      for (size_t before = 1; before < steps; ++before) {
        // With one input kept there is none for the second part: it is one step.
        const int64_t after = kept > 1 ? fewest[steps - before][static_cast<size_t>(kept) - 1]
            : before == steps - 1      ? 0
                                       : int64_t{1} << 40;
        best = std::min(
            best, static_cast<int64_t>(before) + after + fewest[before][static_cast<size_t>(kept)]);
      }
      EXPECT_EQ(revolve_advances(static_cast<int>(steps), kept), best) << steps << ' ' << kept;
    }
  }
}

TEST(Revolve, UsesAsManyInputsAsTheBudgetHolds) {
  const CostChain chain = equal_chain(64, 1, 20);
  // the chain's input, one tape, two gradients and the input of the stage: 24
  for (const int kept : {1, 2, 5, 10, 25}) {
    const ChainPlan plan = revolve(chain, 23 + kept);
    const auto advances = static_cast<double>(revolve_advances(64, kept));
    EXPECT_EQ(plan.makespan, advances + 64 + 128) << kept;
    EXPECT_EQ(plan.least_budget, 24);
  }
  EXPECT_THROW(revolve(chain, 23), InfeasibleBudget);
}

} // namespace
} // namespace palimpsest::testing
