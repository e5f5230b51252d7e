// Every combination of strategies is the same training step; which orders of the passes are.

#include <palimpsest/launcher/compose/compose.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/drop.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/parallel/pipeline/schedule_plan.h>
#include <palimpsest/parallel/pipeline/schedules.h>
#include <palimpsest/tests/support/plan/examples.h>
#include <palimpsest/tests/support/plan/replay.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <iostream>
#include <map>
#include <random>
#include <set>

namespace palimpsest::testing {
namespace {

template <typename T>
const T& pick(const std::vector<T>& items, std::mt19937_64& draw) {
  return items[draw() % items.size()];
}

Choice draw_choice(std::mt19937_64& draw) {
  struct Kind {
    std::string schedule;
    std::vector<int> ranks;
  };
  static const std::vector<Kind> kSchedules{
      {"1f1b", {1}},
      {"gpipe", {1, 2, 3, 4}},
      {"1f1b", {2, 3, 4}},
      {"interleaved", {2, 3, 4}},
      {"zb_h1", {1, 2, 3, 4}}};
  const Kind& kind = pick(kSchedules, draw);
  Choice choice;
  choice.model = pick(model_names(), draw);
  choice.schedule = kind.schedule;
  choice.ranks = pick(kind.ranks, draw);
  choice.micro_batches = 1 + static_cast<int>(draw() % 5);
  choice.policy = pick(policy_names(), draw);
  choice.zero = static_cast<int>(draw() % 4);
  choice.replicate = 1 + static_cast<int>(draw() % 2);
  choice.shard = 1 + static_cast<int>(draw() % 2);
  choice.away = pick(offload_names(), draw);
  choice.window = pick<int64_t>({0, 12, 1'000'000'000}, draw);
  choice.read_ahead = pick<int>({0, 1, 3}, draw);
  choice.lag = pick<int>({0, 1, 2}, draw);
  choice.reproducible = draw() % 3 == 0;
  return choice;
}

States replayed(const Case& example) {
  return Replay(spread_copies(example.plans(), example.job.mesh()), example.job).states();
}

TEST(Compose, EveryCombinationIsTheStepOfThePlainRun) {
  const int count = full_run() ? 7200 : 2400;
  std::mt19937_64 draw(1);
  std::map<std::pair<std::string, int>, States> plain;
  size_t operations = 0;
  for (int number = 0; number < count; ++number) {
    const Choice choice = draw_choice(draw);
    SCOPED_TRACE(to_text(choice));
    const Case example = make(choice);
    const Plans plans = example.plans();
    ASSERT_NO_THROW(simulate(plans, example.job));
    // the plain run: one rank, no technique, as many micro-batches as all data-parallel ranks have
    // together
    const int total = choice.micro_batches * example.job.mesh().data();
    const auto [known, fresh] = plain.try_emplace({choice.model, total});
    if (fresh) {
      known->second = replayed(make({.model = choice.model, .micro_batches = total}));
    }
    const Plans world = spread_copies(plans, example.job.mesh());
    ASSERT_EQ(Replay(world, example.job).states(), known->second);
    for (const StepPlan& plan : world) {
      operations += plan.size();
    }
  }
  std::cout << count << " combinations, " << operations << " operations, " << plain.size()
            << " plain runs\n";
}

/// The computations in order and, between them, what else happens, in any order.
std::vector<std::multiset<Op>> between_computations(const StepPlan& plan) {
  std::vector<std::multiset<Op>> result(1);
  for (const Op& op : plan) {
    if (is_timed(op.kind)) {
      result.push_back({op});
      result.emplace_back();
    } else {
      result.back().insert(op);
    }
  }
  return result;
}

struct Outcome {
  Plans plans;
  std::vector<TierBytes> peaks;
};

/// Empty where the plan is refused.
std::optional<Outcome> in_order(const Case& example, const std::vector<PlanPass>& order) {
  try {
    Plans plans = schedule_plans(example.schedule, example.job);
    for (const PlanPass& pass : order) {
      plans = pass.apply(plans, example.job, example.options);
    }
    return Outcome{plans, promised(simulate(plans, example.job))};
  } catch (const PlanError&) {
    return std::nullopt;
  }
}

TEST(Compose, PassesCommuteExceptWhereTheirOrderIsStated) {
  Choice common{
      .schedule = "1f1b",
      .ranks = 2,
      .micro_batches = 3,
      .policy = "uniform_2",
      .replicate = 2,
      .shard = 2,
      .away = "all_host",
      .own = chain({.per_layer = 1, .tied = true, .skips = true})};
  std::vector<Case> examples;
  for (const int zero : {2, 3}) {
    common.zero = zero;
    examples.push_back(make(common));
  }
  std::vector<PlanPass> all = passes();
  ASSERT_EQ(all.back().name, "drop");
  all.pop_back();
  std::vector<size_t> order{0, 1, 2, 3, 4, 5};
  int orders = 0;
  int valid = 0;
  int moved = 0;
  std::optional<std::vector<Outcome>> usual;
  do {
    std::vector<PlanPass> sequence;
    std::map<std::string_view, size_t> place;
    for (const size_t index : order) {
      place[all[index].name] = sequence.size();
      sequence.push_back(all[index]);
    }
    sequence.push_back({"drop", drop_pass});
    std::vector<Outcome> outcomes;
    for (const Case& example : examples) {
      if (auto outcome = in_order(example, sequence)) {
        outcomes.push_back(std::move(*outcome));
      }
    }
    const bool stated = place["recompute"] < place["gather"] &&
        std::max({place["recompute"], place["gather"], place["reduce"], place["step"]}) <
            place["offload"];
    EXPECT_EQ(outcomes.size() == examples.size(), stated);
    ++orders;
    if (outcomes.size() != examples.size()) {
      continue;
    }
    ++valid;
    if (!usual) {
      usual = outcomes; // the first permutation is the usual order
    }
    bool differs = false;
    for (size_t example = 0; example < examples.size(); ++example) {
      EXPECT_EQ(outcomes[example].peaks, (*usual)[example].peaks);
      for (size_t rank = 0; rank < 2; ++rank) {
        differs |= between_computations(outcomes[example].plans[rank]) !=
            between_computations((*usual)[example].plans[rank]);
      }
    }
    moved += differs;
    // point_to_point before recompute posts the RECV of a gradient before the rerun instead of
    // after it
    EXPECT_EQ(differs, place["point_to_point"] < place["recompute"]);
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(orders, 720);
  EXPECT_EQ(valid, 72);
  std::cout << valid << " of " << orders << " orders valid, " << moved
            << " differ by more than the order between computations\n";
}

TEST(Compose, AScheduleNeedsItsStages) {
  const Case example = make({.ranks = 2});
  EXPECT_THROW(compose(example.job, interleaved(2), {}), UserError);
}

TEST(Compose, EvaluationOnlyRunsForward) {
  const Case training = make({.model = "unet", .schedule = "gpipe", .ranks = 2, .zero = 3});
  JobDescription description = training.job.description();
  description.training = false;
  const Job job(description);
  const Plans plans = compose(job, training.schedule, {});
  EXPECT_NO_THROW(simulate(plans, job));
  for (const StepPlan& plan : plans) {
    for (const Op& op : plan) {
      EXPECT_TRUE(op.kind != OpKind::kAgree && op.kind != OpKind::kUpdate);
      EXPECT_TRUE(op.kind != OpKind::kBackward && op.kind != OpKind::kReduce);
    }
  }
}

} // namespace
} // namespace palimpsest::testing
