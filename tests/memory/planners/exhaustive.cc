#include <palimpsest/tests/memory/planners/exhaustive.h>

#include <array>
#include <queue>
#include <unordered_map>
#include <utility>
#include <vector>

namespace palimpsest::testing {
namespace {

constexpr int kMost = 8;
constexpr int kDone = 15; // instead of a gradient

/// Stages from 1; index 0 is the chain's input, which is always there.
struct State {
  std::array<bool, kMost + 1> output{}; // held by itself
  std::array<uint8_t, kMost + 1> tape{}; // 0: none, else option + 1
  int fresh = 0; // the output that the last operation wrote; 0: none
  int gradient = 0; // whose output's gradient is live; 0: none yet

  uint64_t key() const {
    uint64_t bits = 0;
    for (int l = 1; l <= kMost; ++l) {
      bits = bits * 8 + (output[static_cast<size_t>(l)] ? 4U : 0U) + tape[static_cast<size_t>(l)];
    }
    return bits * 256 + static_cast<uint64_t>(fresh * 16 + gradient);
  }
};

class Search {
 public:
  Search(const CostChain& chain, int64_t budget) : chain_(chain), budget_(budget) {}

  std::optional<double> run() {
    reach({}, 0);
    while (!open_.empty()) {
      const auto [time, key] = open_.top();
      open_.pop();
      const auto [best, state] = known_.at(key);
      if (time > best) {
        continue;
      }
      now_ = time;
      if (state.gradient == kDone) {
        return time;
      }
      expand(state);
    }
    return std::nullopt;
  }

 private:
  using Entry = std::pair<double, uint64_t>;

  int last() const {
    return chain_.size();
  }
  const ChainStage& stage(int l) const {
    return chain_.stages[static_cast<size_t>(l) - 1];
  }
  int64_t a(int l) const {
    return l == 0 ? chain_.input_bytes : stage(l).output_bytes;
  }
  bool has(const State& state, int l) const {
    return l == 0 || state.output[static_cast<size_t>(l)] || state.tape[static_cast<size_t>(l)] > 0;
  }

  int64_t resident(const State& state) const {
    int64_t sum = a(0);
    if (state.gradient > 0) {
      sum += a(state.gradient) + chain_.loss_gradient_bytes;
      for (int l = state.gradient + 1; l <= last(); ++l) {
        sum += stage(l).gradient_bytes;
      }
    }
    for (int l = 1; l <= last(); ++l) {
      sum += state.output[static_cast<size_t>(l)] ? a(l) : 0;
      if (const int tape = state.tape[static_cast<size_t>(l)]; tape > 0) {
        sum += stage(l).tapes[static_cast<size_t>(tape) - 1].bytes;
      }
    }
    return sum;
  }

  void reach(const State& state, double time) {
    const uint64_t key = state.key();
    const auto [found, fresh] = known_.try_emplace(key, time, state);
    if (!fresh && found->second.first <= time) {
      return;
    }
    found->second.first = time;
    open_.emplace(time, key);
  }

  void expand(const State& state) {
    for (int l = 1; l <= last(); ++l) {
      forward(state, l);
      backward(state, l);
    }
    loss(state);
  }

  void forward(const State& state, int l) {
    if (!has(state, l - 1) || (state.gradient > 0 && l > state.gradient)) {
      return;
    }
    const int64_t held = resident(state);
    if (!has(state, l) && held + a(l) + stage(l).forward_workspace <= budget_) {
      State next = state;
      next.output[static_cast<size_t>(l)] = true;
      next.fresh = l;
      reach(next, now_ + stage(l).forward_seconds); // keeps its source
      if (l > 1 && state.fresh == l - 1) {
        next.output[static_cast<size_t>(l) - 1] = false;
        reach(next, now_ + stage(l).forward_seconds);
      }
    }
    const std::vector<TapeOption>& tapes = stage(l).tapes;
    for (size_t option = 0; option < tapes.size(); ++option) {
      const TapeOption& tape = tapes[option];
      const bool unread = chain_.spares_unread && l == state.gradient; // its backward is next
      const int64_t written = tape.bytes - (unread ? a(l) : 0);
      if (state.tape[static_cast<size_t>(l)] == 0 &&
          held + written + tape.forward_workspace <= budget_) {
        State next = state;
        next.tape[static_cast<size_t>(l)] = static_cast<uint8_t>(option + 1);
        next.fresh = 0;
        const double spared = unread ? tape.value_seconds : 0;
        reach(next, now_ + stage(l).forward_seconds - spared);
      }
    }
  }

  void loss(const State& state) {
    if (state.gradient != 0 || !has(state, last()) ||
        resident(state) + a(last()) + chain_.loss_gradient_bytes + chain_.loss_workspace >
            budget_) {
      return;
    }
    State next = state;
    next.output[static_cast<size_t>(last())] = false;
    next.fresh = 0;
    next.gradient = last();
    reach(next, now_ + chain_.loss_seconds);
  }

  void backward(const State& state, int l) {
    const int held = state.tape[static_cast<size_t>(l)];
    if (state.gradient != l || held == 0 || !has(state, l - 1)) {
      return;
    }
    const TapeOption& tape = stage(l).tapes[static_cast<size_t>(held) - 1];
    const int64_t made = a(l - 1) + stage(l).gradient_bytes;
    if (resident(state) + made + tape.backward_workspace > budget_) {
      return;
    }
    State next = state;
    next.tape[static_cast<size_t>(l)] = 0;
    next.output[static_cast<size_t>(l) - 1] = false;
    next.fresh = 0;
    next.gradient = l > 1 ? l - 1 : kDone;
    reach(next, now_ + tape.backward_seconds);
  }

  const CostChain& chain_;
  int64_t budget_;
  double now_ = 0;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> open_;
  std::unordered_map<uint64_t, std::pair<double, State>> known_;
};

} // namespace

std::optional<double> exhaustive_makespan(const CostChain& chain, int64_t budget) {
  return Search(chain, budget).run();
}

} // namespace palimpsest::testing
