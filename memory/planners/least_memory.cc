#include <palimpsest/memory/planners/least_memory.h>

#include <palimpsest/memory/planners/chain_parts.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <vector>

namespace palimpsest {
namespace {

class LeastMemory {
 public:
  explicit LeastMemory(const CostChain& chain)
      : chain_(loss_as_stage(chain)), gradients_(chain_), size_(static_cast<size_t>(chain_.size())),
        least_(size_ * size_, std::numeric_limits<int64_t>::max()) {
    for (int t = 0; t < chain_.size(); ++t) {
      for (int s = t; s >= 0; --s) {
        for_each_choice(s, t, [&](Choice, int64_t need) {
          least(s, t) = std::min(least(s, t), need);
          return true;
        });
      }
    }
  }

  Segments plan() const {
    const auto choose = [&](int s, int t, int64_t bytes) { return this->choose(s, t, bytes); };
    const auto kept = [](int64_t bytes) { return bytes; };
    return segments_of(chain_, least(0, chain_.size() - 1), choose, kept);
  }

 private:
  int64_t& least(int s, int t) {
    return least_[static_cast<size_t>(s) * size_ + static_cast<size_t>(t)];
  }
  int64_t least(int s, int t) const {
    return least_[static_cast<size_t>(s) * size_ + static_cast<size_t>(t)];
  }

  /// Until `visit(choice, bytes it needs)` is false.
  template <typename Visit>
  void for_each_choice(int s, int t, const Visit& visit) const {
    const std::vector<TapeOption>& tapes = chain_.stages[static_cast<size_t>(s)].tapes;
    for (int option = 0; option < static_cast<int>(tapes.size()); ++option) {
      const TapeOption& tape = tapes[static_cast<size_t>(option)];
      const int64_t later = s < t ? tape.bytes + least(s + 1, t) : 0;
      if (!visit({.option = option}, std::max(tape_need(chain_, gradients_, s, t, tape), later))) {
        return;
      }
    }
    int64_t forward = 0;
    for (int split = s + 1; split <= t; ++split) {
      forward = std::max(forward, gradients_.after(t) + forward_need(chain_, s, split - 1));
      const int64_t parts = std::max(chain_.input_of(split) + least(split, t), least(s, split - 1));
      if (!visit({.split = split}, std::max(forward, parts))) {
        return;
      }
    }
  }

  Choice choose(int s, int t, int64_t bytes) const {
    Choice best;
    for_each_choice(s, t, [&](Choice choice, int64_t need) {
      const auto off_middle = [&](int split) { return std::abs(2 * split - s - t - 1); };
      if (need <= bytes &&
          (choice.option >= 0 || best.split == 0 ||
           off_middle(choice.split) < off_middle(best.split))) {
        best = choice;
      }
      return best.option < 0;
    });
    return best;
  }

  CostChain chain_;
  LiveGradients gradients_;
  size_t size_;
  std::vector<int64_t> least_; // by s and t
};

} // namespace

Segments least_memory(const CostChain& chain) {
  return LeastMemory(chain).plan();
}

} // namespace palimpsest
