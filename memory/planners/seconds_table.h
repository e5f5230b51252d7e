#pragma once

// The table behind dynamic_programming: fewest seconds for each run of stages and each number of
// memory slots.
//
//   const SecondsTable table(loss_as_stage(chain), slot_bytes, slots);
//   table.seconds(0, last, slots), table.choose(0, last, slots)
//
// It is filled in tiles of a few runs that share most of what they read, along diagonals, whose
// tiles do not depend on each other, on all cores.

#include <palimpsest/memory/planners/chain_parts.h>

#include <cstddef>
#include <cstdint>
#include <vector>

namespace palimpsest {

class SecondsTable {
 public:
  /// `slots`: the most that any run may take beside its input, and beside `uneven` bytes that every
  /// run has.
  SecondsTable(CostChain chain_with_loss, int64_t slot_bytes, int slots, int64_t uneven = 0);

  int slots() const {
    return width_ - 1;
  }
  /// What `bytes` take when kept; slots() + 1 where that is too much.
  int slots_of(int64_t bytes) const;

  /// The least slots that are enough for s..t; slots() + 1 where none are.
  int least(int s, int t) const {
    return least_[pair(s, t)];
  }
  /// Infinite below least(s, t).
  float seconds(int s, int t, int slots) const {
    return row(s, t)[slots];
  }
  /// A first choice of a fastest plan. At least least(s, t) slots.
  Choice choose(int s, int t, int slots) const;

  size_t bytes() const {
    return table_.size() * sizeof(float);
  }

 private:
  /// One way to go on with a run of stages.
  struct Way {
    Choice choice;
    float seconds; // its own
    int keeps; // slots while the rest is done
    int needs; // slots at least
  };
  Way leave_tape(int s, int t, int option) const;
  Way keep_output(int s, int t, int split) const;
  /// Seconds of what is done next, by slots less `keeps`, and of what is done after it, by slots.
  const float* next_row(int s, int t, const Way& way) const;
  const float* after_row(int s, const Way& way) const;

  void fill();
  void fill_tile(int first_s, int first_t);
  void finish(int s, int t, BlockRange done);
  void add(int s, int t, const Way& way);

  int size() const {
    return chain_.size();
  }
  size_t pair(int s, int t) const;
  const float* row(int s, int t) const {
    return table_.data() + pair(s, t) * static_cast<size_t>(width_);
  }

  CostChain chain_;
  LiveGradients gradients_;
  int64_t slot_;
  int64_t uneven_;
  int width_; // numbers in a row: of 0 slots and more
  std::vector<int> output_slots_; // by stage
  std::vector<double> seconds_before_; // FORWARDs of all earlier stages, by stage
  std::vector<int64_t> forward_need_; // by pair: most bytes of FORWARDs of s..t
  std::vector<float> nothing_; // a row of zeros
  std::vector<int> least_; // by pair
  std::vector<float> table_; // by pair and slots
};

} // namespace palimpsest
