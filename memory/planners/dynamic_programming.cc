#include <palimpsest/memory/planners/dynamic_programming.h>

#include <palimpsest/memory/planners/candidates.h>
#include <palimpsest/memory/planners/chain_run.h>
#include <palimpsest/memory/planners/least_memory.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace palimpsest {
namespace {

constexpr float kNever = std::numeric_limits<float>::infinity();
constexpr int kFewestSlots = 200;
constexpr int kMostSlots = 8192;
constexpr double kSteps = 1e10; // of the table, in a second or so

int slots_for(int stages) {
  const double pairs = std::pow(static_cast<double>(stages), 3) / 6;
  return static_cast<int>(std::clamp<double>(kSteps / pairs, kFewestSlots, kMostSlots));
}

/// The largest number that divides every size of the chain.
int64_t common_divisor(const CostChain& chain) {
  int64_t divisor = std::gcd(chain.input_bytes, chain.loss_workspace);
  for (const ChainStage& stage : chain.stages) {
    divisor = std::gcd(std::gcd(divisor, stage.output_bytes), stage.forward_workspace);
    for (const TapeOption& tape : stage.tapes) {
      divisor = std::gcd(std::gcd(divisor, tape.bytes), tape.forward_workspace);
      divisor = std::gcd(divisor, tape.backward_workspace);
    }
  }
  return std::max<int64_t>(divisor, 1);
}

/// best = min(best, seconds + one + other), `count` times.
void min_plus(float seconds, const float* one, const float* other, float* best, int count) {
  for (int index = 0; index < count; ++index) {
    const float sum = seconds + one[index] + other[index];
    best[index] = sum < best[index] ? sum : best[index];
  }
}

} // namespace

DynamicProgram::DynamicProgram(const CostChain& chain, int64_t largest_budget, int slots)
    : given_(chain), chain_(loss_as_stage(chain)), least_(least_memory(chain)),
      least_budget_(run_chain(chain, least_).peak), all_tapes_(run_chain(chain, {}).peak) {
  const int wanted = slots > 0 ? slots : slots_for(chain_.size());
  slot_ = std::max(common_divisor(chain), (all_tapes_ + wanted - 1) / wanted);
  const int64_t useful = std::min(largest_budget, all_tapes_) - chain.input_bytes;
  if (largest_budget < least_budget_ || useful < 0) {
    return; // plan() refuses
  }
  width_ = static_cast<int>(useful / slot_) + 1;
  for (const ChainStage& stage : chain_.stages) {
    output_slots_.push_back(slots_up(stage.output_bytes));
  }
  const auto size = static_cast<size_t>(chain_.size());
  nothing_.resize(static_cast<size_t>(width_), 0);
  first_.resize(size * (size + 1) / 2);
  table_.resize(first_.size() * static_cast<size_t>(width_));
  for (int t = 0; t < chain_.size(); ++t) {
    for (int s = t; s >= 0; --s) {
      fill(s, t);
    }
  }
}

int DynamicProgram::slots_up(int64_t bytes) const {
  return static_cast<int>(std::min<int64_t>((bytes + slot_ - 1) / slot_, width_));
}

/// Rows of one s lie together, t ascending.
size_t DynamicProgram::pair(int s, int t) const {
  const auto size = static_cast<size_t>(chain_.size());
  const auto begin = static_cast<size_t>(s);
  return begin * size - begin * (begin + 1) / 2 + static_cast<size_t>(t);
}

float* DynamicProgram::row(int s, int t) {
  return table_.data() + pair(s, t) * static_cast<size_t>(width_);
}

const float* DynamicProgram::row(int s, int t) const {
  return table_.data() + pair(s, t) * static_cast<size_t>(width_);
}

template <typename Visit>
void DynamicProgram::for_each_choice(int s, int t, const Visit& visit) const {
  const ChainStage& stage = chain_.stages[static_cast<size_t>(s)];
  for (int option = 0; option < static_cast<int>(stage.tapes.size()); ++option) {
    const TapeOption& tape = stage.tapes[static_cast<size_t>(option)];
    const double seconds = stage.forward_seconds + tape.backward_seconds;
    const int keeps = slots_up(tape.bytes);
    const int later = s < t ? keeps + first_[pair(s + 1, t)] : 0;
    const int needs = std::max(slots_up(tape_need(chain_, s, t, tape)), later);
    visit(Choice{.option = option}, static_cast<float>(seconds), keeps, needs);
  }
  double seconds = 0;
  int64_t forward = -1;
  int forward_slots = 0;
  for (int split = s + 1; split <= t; ++split) {
    seconds += chain_.stages[static_cast<size_t>(split) - 1].forward_seconds;
    if (const int64_t next = forward_need(chain_, s, split - 1); next > forward) {
      forward = next;
      forward_slots = slots_up(chain_.input_of(t + 1) + forward);
    }
    if (forward_slots >= width_) {
      return;
    }
    const int keeps = output_slots_[static_cast<size_t>(split) - 1];
    const int needs =
        std::max({forward_slots, keeps + first_[pair(split, t)], first_[pair(s, split - 1)]});
    visit(Choice{.split = split}, static_cast<float>(seconds), keeps, needs);
  }
}

void DynamicProgram::fill(int s, int t) {
  float* best = row(s, t);
  std::fill_n(best, width_, kNever);
  int first = width_;
  for_each_choice(s, t, [&](Choice choice, float seconds, int keeps, int needs) {
    if (needs >= width_) {
      return;
    }
    first = std::min(first, needs);
    const bool tape = choice.option >= 0;
    const float* later = tape && s == t ? nothing_.data()
        : tape                          ? row(s + 1, t) + needs - keeps
                                        : row(choice.split, t) + needs - keeps;
    const float* after = tape ? nothing_.data() : row(s, choice.split - 1) + needs;
    min_plus(seconds, later, after, best + needs, width_ - needs);
  });
  first_[pair(s, t)] = first;
}

Choice DynamicProgram::choose(int s, int t, int slots) const {
  Choice best;
  float least = kNever;
  for_each_choice(s, t, [&](Choice choice, float seconds, int keeps, int needs) {
    if (needs > slots) {
      return;
    }
    const bool tape = choice.option >= 0;
    const float later = tape && s == t ? 0
        : tape                         ? row(s + 1, t)[slots - keeps]
                                       : row(choice.split, t)[slots - keeps];
    const float sum = seconds + later + (tape ? 0 : row(s, choice.split - 1)[slots]);
    if (sum < least) {
      least = sum;
      best = choice;
    }
  });
  check(best.option >= 0 || best.split > s, "no choice for stages {} to {}", s, t);
  return best;
}

ChainPlan DynamicProgram::plan(int64_t budget) const {
  Candidates candidates(given_, budget);
  candidates.consider(least_);
  if (budget >= all_tapes_) {
    candidates.consider({});
  } else if (budget >= least_budget_) {
    const int64_t slots = (budget - given_.input_bytes) / slot_;
    check(slots < width_, "a budget of {} bytes is above the table's largest", budget);
    if (slots >= first_[pair(0, chain_.size() - 1)]) {
      const auto choice = [&](int s, int t, int left) { return choose(s, t, left); };
      const auto kept = [&](int64_t bytes) { return slots_up(bytes); };
      const int64_t peak =
          candidates.consider(segments_of(chain_, static_cast<int>(slots), choice, kept));
      check(peak <= budget, "a plan of {} bytes for a budget of {}", peak, budget);
    }
  }
  return candidates.fastest("dynamic_programming");
}

ChainPlan dynamic_programming(const CostChain& chain, int64_t budget) {
  return DynamicProgram(chain, budget).plan(budget);
}

} // namespace palimpsest
