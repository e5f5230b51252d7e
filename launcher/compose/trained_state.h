#pragma once

// Where a run's output folder has its newest parameters.
//
//   const auto state = newest_state("runs/a");        // runs/a/model, or runs/a/step-00001000 where that is newer

#include <filesystem>
#include <optional>

namespace palimpsest {

/// Whether a folder holds a whole model, or adapters.
bool holds_model(const std::filesystem::path& folder);

struct TrainedState {
  std::filesystem::path folder;
  bool is_checkpoint = false;
  std::filesystem::path passed_over; ///< an older model or adapter folder; empty: none
};

/// The newest of model/, adapter/ and the checkpoints, by when they were written: a run that has
/// ended wrote its model last, one that went on from there and was killed has newer checkpoints.
/// Nothing where there is none of them. UserError where the newest is a checkpoint that is damaged.
std::optional<TrainedState> newest_state(const std::filesystem::path& output);

} // namespace palimpsest
