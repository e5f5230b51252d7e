#include <palimpsest/parallel/pipeline/schedules.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>

namespace palimpsest {
namespace {

std::vector<Turn> each_micro_batch(Work work, int stage, int micro_batches) {
  std::vector<Turn> turns;
  for (int mb = 0; mb < micro_batches; ++mb) {
    turns.push_back({work, stage, mb});
  }
  return turns;
}

/// `warm_up` forwards, then forward and backward in turn.
std::vector<Turn> alternate(
    const std::vector<Turn>& forwards,
    const std::vector<Turn>& backwards,
    size_t warm_up) {
  const size_t ahead = std::min(warm_up, forwards.size());
  std::vector<Turn> turns(forwards.begin(), forwards.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (size_t nth = 0; nth < backwards.size(); ++nth) {
    if (ahead + nth < forwards.size()) {
      turns.push_back(forwards[ahead + nth]);
    }
    turns.push_back(backwards[nth]);
  }
  return turns;
}

std::vector<Turn> gpipe_turns(int rank, int, int micro_batches) {
  std::vector<Turn> turns = each_micro_batch(Work::kForward, rank, micro_batches);
  const auto backwards = each_micro_batch(Work::kBackward, rank, micro_batches);
  turns.insert(turns.end(), backwards.begin(), backwards.end());
  return turns;
}

std::vector<Turn> one_forward_one_backward_turns(int rank, int ranks, int micro_batches) {
  return alternate(
      each_micro_batch(Work::kForward, rank, micro_batches),
      each_micro_batch(Work::kBackward, rank, micro_batches),
      static_cast<size_t>(ranks - 1 - rank));
}

std::vector<Turn> zero_bubble_h1_turns(int rank, int ranks, int micro_batches) {
  std::vector<Turn> turns;
  int weights = 0;
  for (Turn turn : one_forward_one_backward_turns(rank, ranks, micro_batches)) {
    const bool backward = turn.work == Work::kBackward;
    if (backward) {
      turn.work = Work::kBackwardInput;
    }
    turns.push_back(turn);
    if (backward && turn.mb >= rank) {
      turns.push_back({Work::kBackwardWeight, rank, weights++});
    }
  }
  while (weights < micro_batches) {
    turns.push_back({Work::kBackwardWeight, rank, weights++});
  }
  return turns;
}

std::vector<Turn> interleaved_turns(int chunks, int rank, int ranks, int micro_batches) {
  std::vector<Turn> forwards;
  std::vector<Turn> backwards;
  for (int first = 0; first < micro_batches; first += ranks) {
    for (int chunk = 0; chunk < chunks; ++chunk) {
      for (int mb = first; mb < std::min(first + ranks, micro_batches); ++mb) {
        forwards.push_back({Work::kForward, chunk * ranks + rank, mb});
        backwards.push_back({Work::kBackward, (chunks - 1 - chunk) * ranks + rank, mb});
      }
    }
  }
  return alternate(
      forwards, backwards, static_cast<size_t>(2 * (ranks - 1 - rank) + (chunks - 1) * ranks));
}

} // namespace

Schedule gpipe() {
  return {"gpipe", "all forwards, then all backwards", 1, gpipe_turns};
}

Schedule one_forward_one_backward() {
  return {
      "1f1b",
      "one forward, one backward; with one stage: gradient accumulation",
      1,
      one_forward_one_backward_turns};
}

Schedule interleaved(int chunks) {
  return {
      "interleaved",
      "1f1b with several stages a rank, for a smaller bubble",
      chunks,
      [chunks](int rank, int ranks, int micro_batches) {
        return interleaved_turns(chunks, rank, ranks, micro_batches);
      }};
}

Schedule zero_bubble_h1() {
  return {"zb_h1", "1f1b with weight gradients postponed into the bubble", 1, zero_bubble_h1_turns};
}

std::vector<Schedule> schedules() {
  return {gpipe(), one_forward_one_backward(), interleaved(), zero_bubble_h1()};
}

Schedule find_schedule(std::string_view name) {
  std::string names;
  for (const Schedule& schedule : schedules()) {
    if (schedule.name == name) {
      return schedule;
    }
    names += (names.empty() ? "" : ", ") + schedule.name;
  }
  throw UserError("schedule: '{}' is unknown; choose one of {}", name, names);
}

} // namespace palimpsest
