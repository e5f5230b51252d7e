#include <palimpsest/parallel/pipeline/schedules.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/launcher/compose/compose.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace palimpsest::testing {
namespace {

TEST(Schedules, KeepTheMicroBatchesInFlightThatTheyPromise) {
  int cases = 0;
  for (int ranks = 1; ranks <= 6; ++ranks) {
    for (int batches = 1; batches <= 8; ++batches) {
      for (const char* name : {"1f1b", "zb_h1", "gpipe"}) {
        for (int rank = 0; rank < ranks; ++rank) {
          int now = 0;
          int most = 0;
          for (const Turn& turn : find_schedule(name).turns(rank, ranks, batches)) {
            now += turn.work == Work::kForward ? 1 : turn.work == Work::kBackwardWeight ? 0 : -1;
            most = std::max(most, now);
          }
          const int expected =
              name == std::string("gpipe") ? batches : std::min(ranks - rank, batches);
          EXPECT_EQ(most, expected) << name << ' ' << ranks << ' ' << batches << ' ' << rank;
          EXPECT_EQ(now, 0);
          ++cases;
        }
      }
    }
  }
  EXPECT_EQ(cases, 504);
}

/// Bubble over work, with free communication and forward, input part and weight part of a second
/// per layer.
double bubble(const Schedule& schedule, int ranks, int batches) {
  ModelCost model = chain({.layers = 2 * ranks, .per_layer = 1});
  for (BlockCost* end : {&model.blocks.front(), &model.blocks.back()}) {
    end->forward_seconds = end->input_seconds = end->weight_seconds = 0;
  }
  const Job job(
      {.model = model,
       .stages = layer_stages(model, ranks * schedule.chunks),
       .micro_batches = batches,
       .mesh = {.pipeline = ranks}});
  const Plans plans = compose(job, schedule, {});
  return simulate(plans, job).seconds / (batches * 6) - 1;
}

TEST(Schedules, HaveTheBubblesOfTheirClosedForms) {
  for (int ranks = 1; ranks <= 4; ++ranks) {
    for (const int batches : {1, 2, 3, 4, 5, 8}) {
      SCOPED_TRACE("ranks " + std::to_string(ranks) + ", micro-batches " + std::to_string(batches));
      const double work = static_cast<double>(ranks - 1) / batches;
      const double one_by_one = bubble(one_forward_one_backward(), ranks, batches);
      const double zero_bubble = bubble(zero_bubble_h1(), ranks, batches);
      EXPECT_NEAR(bubble(gpipe(), ranks, batches), work, 1e-9);
      EXPECT_NEAR(one_by_one, work, 1e-9);
      EXPECT_LE(zero_bubble, one_by_one + 1e-9);
      if (batches >= 2 * ranks - 1) {
        EXPECT_NEAR(zero_bubble, work / 3, 1e-9);
      }
      if (ranks > 1 && batches % ranks == 0) {
        EXPECT_NEAR(bubble(interleaved(2), ranks, batches), work / 2, 1e-9);
      }
    }
  }
}

TEST(Schedules, AnUnknownNameListsTheValidOnes) {
  try {
    find_schedule("1b1f");
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("gpipe, 1f1b, interleaved, zb_h1"));
  }
}

} // namespace
} // namespace palimpsest::testing
