// Covers: memory/planners/min_plus.cc
#include <palimpsest/memory/planners/seconds_table.h>

#include <palimpsest/tests/memory/planners/chains.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace palimpsest::testing {
namespace {

/// The recursion as it is written down, one step of it: what the entry must be, given the entries
/// of shorter runs.
class Recursion {
 public:
  Recursion(const CostChain& chain, const SecondsTable& table, int64_t slot)
      : chain_(chain), table_(table), slot_(slot) {}

  float seconds(int s, int t, int m) const {
    float best = std::numeric_limits<float>::infinity();
    for (const TapeOption& tape : chain_.stages[static_cast<size_t>(s)].tapes) {
      const bool unread = chain_.spares_unread && s == t;
      const int64_t forward =
          a(t + 1) + weights(t + 1) + tape.bytes - (unread ? a(s + 1) : 0) + tape.forward_workspace;
      const int64_t backward = a(s) + a(s + 1) + weights(s) + tape.bytes + tape.backward_workspace;
      const int left = m - slots(tape.bytes);
      if (std::max(slots(forward), slots(backward)) <= m && left >= 0) {
        const float later = s < t ? table_.seconds(s + 1, t, left) : 0;
        const double spared = unread ? tape.value_seconds : 0;
        best = std::min(best, static_cast<float>(fw(s) - spared + tape.backward_seconds) + later);
      }
    }
    double first = 0;
    for (int split = s + 1; split <= t; ++split) {
      const int stage = split - 1;
      first += fw(stage);
      const int64_t run = a(t + 1) + weights(t + 1) + (stage > s ? a(stage) : 0) + a(stage + 1) +
          chain_.stages[static_cast<size_t>(stage)].forward_workspace;
      const int left = m - slots(a(split));
      if (slots(run) > m || left < 0) {
        if (slots(run) > m) {
          break; // so it is for all later splits
        }
        continue;
      }
      best = std::min(
          best,
          static_cast<float>(first) + table_.seconds(split, t, left) +
              table_.seconds(s, split - 1, m));
    }
    return best;
  }

 private:
  int64_t a(int stage) const {
    return stage == 0 ? chain_.input_bytes
                      : chain_.stages[static_cast<size_t>(stage) - 1].output_bytes;
  }
  /// Gradients of the weights from a stage on.
  int64_t weights(int stage) const {
    int64_t sum = 0;
    for (; stage < chain_.size(); ++stage) {
      sum += chain_.stages[static_cast<size_t>(stage)].gradient_bytes;
    }
    return sum;
  }
  double fw(int stage) const {
    return chain_.stages[static_cast<size_t>(stage)].forward_seconds;
  }
  int slots(int64_t bytes) const {
    return static_cast<int>((bytes + slot_ - 1) / slot_);
  }

  const CostChain& chain_;
  const SecondsTable& table_;
  int64_t slot_;
};

TEST(SecondsTable, IsTheRecursionInEveryEntry) {
  std::mt19937_64 draw(31);
  for (const int64_t slot : {1, 3}) {
    const CostChain chain =
        loss_as_stage(draw_chain(draw, {.least_stages = 50, .most_stages = 50, .lean = true}));
    const SecondsTable table(chain, slot, 90);
    const Recursion recursion(chain, table, slot);
    for (int s = 0; s < chain.size(); ++s) {
      for (int t = s; t < chain.size(); ++t) {
        int least = table.slots() + 1;
        for (int m = table.slots(); m >= 0; --m) {
          ASSERT_EQ(table.seconds(s, t, m), recursion.seconds(s, t, m))
              << s << ' ' << t << ' ' << m;
          least = std::isfinite(table.seconds(s, t, m)) ? m : least;
        }
        ASSERT_EQ(table.least(s, t), least);
      }
    }
  }
}

// Large enough for several threads.
TEST(SecondsTable, IsTheRecursionWhereThreadsShareTheWork) {
  std::mt19937_64 draw(32);
  const CostChain chain =
      loss_as_stage(draw_chain(draw, {.least_stages = 130, .most_stages = 130, .lean = true}));
  const SecondsTable table(chain, 2, 300);
  const Recursion recursion(chain, table, 2);
  for (int trial = 0; trial < 20000; ++trial) {
    const auto s = static_cast<int>(draw() % static_cast<uint64_t>(chain.size()));
    const auto t = s + static_cast<int>(draw() % static_cast<uint64_t>(chain.size() - s));
    const auto m = static_cast<int>(draw() % 301);
    ASSERT_EQ(table.seconds(s, t, m), recursion.seconds(s, t, m)) << s << ' ' << t << ' ' << m;
  }
}

} // namespace
} // namespace palimpsest::testing
