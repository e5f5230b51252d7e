#include <palimpsest/core/plan/signature.h>

#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>

#include <map>
#include <tuple>

namespace palimpsest::testing {
namespace {

TEST(Signature, IsEqualAlongTheRanksOfEveryGroup) {
  size_t groups = 0;
  for (const auto& [zero, replicate, shard] :
       {std::tuple(0, 2, 1), std::tuple(1, 2, 2), std::tuple(2, 2, 2), std::tuple(3, 1, 2)}) {
    const Case example = make(
        {.model = "tied",
         .ranks = 2,
         .micro_batches = 3,
         .zero = zero,
         .replicate = replicate,
         .shard = shard});
    const Plans world = spread_copies(example.plans(), example.job.mesh());
    std::map<RankGroup, std::map<int, std::vector<SignatureLine>>> seen;
    for (int rank = 0; rank < static_cast<int>(world.size()); ++rank) {
      for (const SignatureLine& line :
           signature(world[static_cast<size_t>(rank)], rank, example.job)) {
        if (is_collective(line.kind)) {
          seen[line.group][rank].push_back(line);
        }
      }
    }
    for (const auto& [group, ranks] : seen) {
      EXPECT_EQ(ranks.size(), group.ranks.size());
      for (const auto& [rank, lines] : ranks) {
        EXPECT_EQ(lines, ranks.begin()->second);
      }
    }
    groups += seen.size();
  }
  EXPECT_GT(groups, 20U);
}

TEST(Signature, TheHashSeesCommunicationAlone) {
  const Choice choice{.ranks = 2, .zero = 2, .shard = 2};
  const Case example = make(choice);
  const Plans plans = example.plans();
  const uint64_t hash = communication_hash(plans, example.job);
  Choice lean = choice;
  lean.policy = "keep_lean"; // other tapes, the same communication
  const Case other = make(lean);
  EXPECT_NE(plan_hash(other.plans()[0]), plan_hash(plans[0]));
  EXPECT_EQ(communication_hash(other.plans(), other.job), hash);
  Choice batches = choice;
  batches.micro_batches = 3;
  const Case more = make(batches);
  EXPECT_NE(communication_hash(more.plans(), more.job), hash);
  Plans changed = plans;
  for (Op& op : changed[1]) {
    if (op.kind == OpKind::kReduce) {
      op.unit += 1;
      break;
    }
  }
  EXPECT_NE(communication_hash(changed, example.job), hash);
}

} // namespace
} // namespace palimpsest::testing
