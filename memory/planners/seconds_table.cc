#include <palimpsest/memory/planners/seconds_table.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/memory/planners/min_plus.h>

#include <algorithm>
#include <atomic>
#include <limits>
#include <thread>
#include <utility>

namespace palimpsest {
namespace {

constexpr float kNever = std::numeric_limits<float>::infinity();
constexpr int kTile = 16; // stages; rows of 200 slots of so many pairs stay in the second cache
constexpr double kStepsWorthThreads = 1e8;

/// work(0) to work(count - 1), on so many threads.
template <typename Work>
void run_on(int threads, int count, const Work& work) {
  std::atomic<int> next{0};
  const auto take = [&] {
    for (int item = next++; item < count; item = next++) {
      work(item);
    }
  };
  std::vector<std::jthread> others;
  for (int other = 1; other < std::min(threads, count); ++other) {
    others.emplace_back(take);
  }
  take();
}

} // namespace

SecondsTable::SecondsTable(CostChain chain_with_loss, int64_t slot_bytes, int slots, int64_t uneven)
    : chain_(std::move(chain_with_loss)), gradients_(chain_), slot_(slot_bytes), uneven_(uneven),
      width_(slots + 1), nothing_(static_cast<size_t>(width_), 0) {
  const auto stages = static_cast<size_t>(size());
  seconds_before_.push_back(0);
  for (const ChainStage& stage : chain_.stages) {
    output_slots_.push_back(slots_of(stage.output_bytes));
    seconds_before_.push_back(seconds_before_.back() + stage.forward_seconds);
  }
  forward_need_.resize(stages * (stages + 1) / 2);
  for (int s = 0; s < size(); ++s) {
    int64_t most = 0;
    for (int t = s; t < size(); ++t) {
      most = std::max(most, palimpsest::forward_need(chain_, s, t));
      forward_need_[pair(s, t)] = most;
    }
  }
  least_.resize(forward_need_.size(), width_);
  table_.resize(forward_need_.size() * static_cast<size_t>(width_), kNever);
  fill();
}

int SecondsTable::slots_of(int64_t bytes) const {
  return static_cast<int>(std::clamp<int64_t>((bytes + slot_ - 1) / slot_, 0, width_));
}

/// Rows of one s lie together, t ascending.
size_t SecondsTable::pair(int s, int t) const {
  const auto stages = static_cast<size_t>(size());
  const auto begin = static_cast<size_t>(s);
  return begin * stages - begin * (begin + 1) / 2 + static_cast<size_t>(t);
}

SecondsTable::Way SecondsTable::leave_tape(int s, int t, int option) const {
  const ChainStage& stage = chain_.stages[static_cast<size_t>(s)];
  const TapeOption& tape = stage.tapes[static_cast<size_t>(option)];
  const int keeps = slots_of(tape.bytes);
  const int later = s < t ? keeps + least(s + 1, t) : 0;
  const double spared = s == t && chain_.spares_unread ? tape.value_seconds : 0;
  return {
      {.option = option},
      static_cast<float>(stage.forward_seconds - spared + tape.backward_seconds),
      keeps,
      std::max(slots_of(tape_need(chain_, gradients_, s, t, tape) - uneven_), later)};
}

SecondsTable::Way SecondsTable::keep_output(int s, int t, int split) const {
  const double seconds =
      seconds_before_[static_cast<size_t>(split)] - seconds_before_[static_cast<size_t>(s)];
  const int keeps = output_slots_[static_cast<size_t>(split) - 1];
  int needs = std::max(keeps + least(split, t), least(s, split - 1));
  const int64_t forward = gradients_.after(t) + forward_need_[pair(s, split - 1)] - uneven_;
  if (forward > needs * slot_) { // seldom, and a division takes long
    needs = slots_of(forward);
  }
  return {{.split = split}, static_cast<float>(seconds), keeps, needs};
}

const float* SecondsTable::next_row(int s, int t, const Way& way) const {
  if (way.choice.option < 0) {
    return row(way.choice.split, t);
  }
  return s < t ? row(s + 1, t) : nothing_.data() + way.keeps;
}

const float* SecondsTable::after_row(int s, const Way& way) const {
  return way.choice.option < 0 ? row(s, way.choice.split - 1) : nothing_.data();
}

void SecondsTable::add(int s, int t, const Way& way) {
  if (way.needs >= width_) {
    return;
  }
  int& least = least_[pair(s, t)];
  least = std::min(least, way.needs);
  min_plus(
      way.seconds,
      next_row(s, t, way) + way.needs - way.keeps,
      after_row(s, way) + way.needs,
      table_.data() + pair(s, t) * static_cast<size_t>(width_) + way.needs,
      static_cast<size_t>(width_ - way.needs));
}

void SecondsTable::fill() {
  const double stages = size();
  const bool long_work = stages * stages * stages / 6 * width_ > kStepsWorthThreads;
  const int threads = long_work ? static_cast<int>(std::thread::hardware_concurrency()) : 1;
  const int tiles = (size() + kTile - 1) / kTile;
  for (int diagonal = 0; diagonal < tiles; ++diagonal) {
    run_on(threads, tiles - diagonal, [&](int tile) {
      fill_tile(tile * kTile, (tile + diagonal) * kTile);
    });
  }
}

/// The runs that begin and end in a tile. Splits between the two are done for all of them together,
/// since they read the same rows.
void SecondsTable::fill_tile(int first_s, int first_t) {
  const int end_s = std::min(first_s + kTile, size());
  const int end_t = std::min(first_t + kTile, size());
  const BlockRange between{end_s, first_t + 1};
  for (int split = between.begin; split < between.end; ++split) {
    for (int s = first_s; s < end_s; ++s) {
      for (int t = first_t; t < end_t; ++t) {
        add(s, t, keep_output(s, t, split));
      }
    }
  }
  for (int t = first_t; t < end_t; ++t) {
    for (int s = std::min(end_s - 1, t); s >= first_s; --s) {
      finish(s, t, between);
    }
  }
}

/// All ways but the splits that are done.
void SecondsTable::finish(int s, int t, BlockRange done) {
  const size_t options = chain_.stages[static_cast<size_t>(s)].tapes.size();
  for (int option = 0; option < static_cast<int>(options); ++option) {
    add(s, t, leave_tape(s, t, option));
  }
  for (int split = s + 1; split <= t; ++split) {
    if (!done.contains(split)) {
      add(s, t, keep_output(s, t, split));
    }
  }
}

Choice SecondsTable::choose(int s, int t, int slots) const {
  Choice best;
  float fewest = kNever;
  const auto consider = [&](const Way& way) {
    if (way.needs > slots) {
      return;
    }
    const float seconds =
        way.seconds + next_row(s, t, way)[slots - way.keeps] + after_row(s, way)[slots];
    if (seconds < fewest) {
      fewest = seconds;
      best = way.choice;
    }
  };
  const size_t options = chain_.stages[static_cast<size_t>(s)].tapes.size();
  for (int option = 0; option < static_cast<int>(options); ++option) {
    consider(leave_tape(s, t, option));
  }
  for (int split = s + 1; split <= t; ++split) {
    consider(keep_output(s, t, split));
  }
  check(fewest < kNever, "no plan for stages {} to {} with {} slots", s, t, slots);
  return best;
}

} // namespace palimpsest
