// Covers: step.cc, plan_pass.cc
//
// Plans with one or two mistakes: each is refused by a rule, refused because it needs more memory
// than promised, or computes the same states by an independent replay. None is accepted and wrong.

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/tests/support/plan/examples.h>
#include <palimpsest/tests/support/plan/mutations.h>
#include <palimpsest/tests/support/plan/replay.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <iostream>
#include <map>

namespace palimpsest::testing {
namespace {

/// Thirteen valid plans that together use every operation, placement and schedule.
std::vector<Choice> bases() {
  const ModelCost small = chain({.layers = 2, .per_layer = 1});
  const ModelCost tied = chain({.layers = 2, .per_layer = 1, .tied = true});
  const auto skips = [](bool shared) {
    return chain({.layers = 4, .per_layer = 1, .skips = true, .shared = shared});
  };
  return {
      {.replicate = 2, .own = small},
      {.policy = "full", .zero = 1, .shard = 2, .away = "optimizer", .own = small},
      {.zero = 2, .replicate = 2, .shard = 2, .away = "gradients", .own = tied},
      {.policy = "full",
       .zero = 3,
       .shard = 2,
       .away = "all_host",
       .window = 12,
       .read_ahead = 0,
       .own = small},
      {.ranks = 2, .micro_batches = 3, .policy = "full", .zero = 3, .own = skips(false)},
      {.schedule = "gpipe", .ranks = 3, .policy = "uniform_2", .own = skips(true)},
      {.ranks = 2, .micro_batches = 3, .zero = 2, .shard = 2, .own = tied},
      {.schedule = "zb_h1", .ranks = 2, .micro_batches = 3, .replicate = 2, .own = tied},
      {.schedule = "interleaved",
       .ranks = 2,
       .micro_batches = 3,
       .zero = 1,
       .away = "activations",
       .read_ahead = 0,
       .own = chain({.layers = 2, .per_layer = 2})},
      {.schedule = "zb_h1",
       .ranks = 2,
       .micro_batches = 3,
       .policy = "lean",
       .zero = 3,
       .lag = 1,
       .own = chain({.layers = 3, .per_layer = 1, .frozen_layers = 1})},
      {.policy = "nested",
       .zero = 3,
       .replicate = 2,
       .away = "all_disk",
       .own = chain({.layers = 2, .per_layer = 1, .adapters = true})},
      {.replicate = 2, .reproducible = true, .own = small},
      {.ranks = 2,
       .zero = 3,
       .replicate = 2,
       .shard = 2,
       .away = "gradients",
       .reproducible = true,
       .own = small},
  };
}

enum Verdict { kRule, kBudget, kEquivalent, kSurvivor };

Verdict judge(const Plans& world, const Job& job, const PlanBudget& budget, const States& truth) {
  try {
    simulate_world(world, job);
  } catch (const PlanError&) {
    return kRule;
  }
  try {
    if (Replay(world, job).states() != truth) {
      return kSurvivor;
    }
  } catch (const ReplayError&) {
    return kSurvivor;
  }
  try {
    simulate_world(world, job, budget);
  } catch (const PlanError& error) {
    EXPECT_NE(std::string(error.what()).find("over budget"), std::string::npos);
    return kBudget;
  }
  return kEquivalent;
}

/// The world's plans with the mutant on all data-parallel peers of a pipeline rank, or only on the
/// last of them.
Plans with_mutant(
    Plans world,
    const StepPlan& mutant,
    int pipeline_rank,
    const Mesh& mesh,
    bool one) {
  for (int data = one ? mesh.data() - 1 : 0; data < mesh.data(); ++data) {
    world[static_cast<size_t>(pipeline_rank * mesh.data() + data)] = mutant;
  }
  return world;
}

double chance(std::mt19937_64& draw) {
  return std::uniform_real_distribution<>()(draw);
}

TEST(Mutants, NoneIsAcceptedAndWrong) {
  std::mt19937_64 draw(2);
  std::map<std::string, std::array<int, 4>> counts;
  int total = 0;
  for (const Choice& base : bases()) {
    SCOPED_TRACE(to_text(base));
    const Case example = make(base);
    const Mesh& mesh = example.job.mesh();
    const Plans plans = example.plans();
    const Plans world = spread_copies(plans, mesh);
    const PlanBudget budget = promised(simulate(plans, example.job));
    const States truth = Replay(world, example.job).states();
    for (int rank = 0; rank < mesh.pipeline; ++rank) {
      std::vector<Mutant> mutants = mutations(plans[static_cast<size_t>(rank)], example.job, draw);
      const size_t singles = mutants.size();
      for (size_t nth = 0; nth < singles; ++nth) {
        if (chance(draw) < 0.2) {
          const auto second = mutations(mutants[nth].plan, example.job, draw);
          mutants.push_back({"two changes", second[draw() % second.size()].plan});
        }
      }
      for (const auto& [kind, mutant] : mutants) {
        const bool twice = mesh.data() > 1 && chance(draw) < 0.25;
        for (const bool one : twice ? std::vector<bool>{false, true} : std::vector<bool>{false}) {
          const Plans changed = with_mutant(world, mutant, rank, mesh, one);
          const Verdict verdict = judge(changed, example.job, budget, truth);
          ASSERT_NE(verdict, kSurvivor) << kind << " on pipeline rank " << rank << '\n'
                                        << to_text(mutant);
          ++counts[kind][verdict];
          ++total;
        }
      }
    }
  }
  std::cout << total << " mutants; refused by a rule, by the promised peak, equivalent:\n";
  for (const auto& [kind, verdicts] : counts) {
    std::cout << "  " << kind << ": " << verdicts[kRule] << ' ' << verdicts[kBudget] << ' '
              << verdicts[kEquivalent] << '\n';
    EXPECT_GT(verdicts[kRule], 0);
  }
  EXPECT_GT(total, 12000);
}

/// The control: the replay must see wrong numbers in mutants that a rule refused, else its consent
/// is worth nothing.
TEST(Mutants, TheReplayFindsWrongNumbersInRefusedOnes) {
  std::mt19937_64 draw(4);
  int refused = 0;
  int cannot_run = 0;
  int wrong = 0;
  int same = 0;
  for (const Choice& base : bases()) {
    const Case example = make(base);
    const Mesh& mesh = example.job.mesh();
    const Plans plans = example.plans();
    const Plans world = spread_copies(plans, mesh);
    const States truth = Replay(world, example.job).states();
    for (int rank = 0; rank < mesh.pipeline; ++rank) {
      auto mutants = mutations(plans[static_cast<size_t>(rank)], example.job, draw);
      std::shuffle(mutants.begin(), mutants.end(), draw);
      mutants.resize(std::min<size_t>(mutants.size(), 100));
      for (const Mutant& mutant : mutants) {
        const Plans changed = with_mutant(world, mutant.plan, rank, mesh, false);
        try {
          simulate_world(changed, example.job);
          continue;
        } catch (const PlanError&) {
          ++refused;
        }
        std::optional<Replay> replay;
        try {
          replay.emplace(changed, example.job);
        } catch (const ReplayError&) {
          ++cannot_run;
          continue;
        }
        try {
          ++(replay->states(true) == truth ? same : wrong);
        } catch (const ReplayError&) { // ranks disagree
          ++wrong;
        }
      }
    }
  }
  std::cout << refused << " refused mutants replayed: " << cannot_run << " cannot run, " << wrong
            << " give wrong numbers, " << same << " the same\n";
  EXPECT_GT(wrong, 50);
  EXPECT_GT(cannot_run, refused / 2);
}

} // namespace
} // namespace palimpsest::testing
