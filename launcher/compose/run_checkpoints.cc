#include <palimpsest/launcher/compose/run_checkpoints.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/meaning.h>
#include <palimpsest/core/config/show.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/checkpoint_writer.h>
#include <palimpsest/launcher/compose/saved_states.h>
#include <palimpsest/parallel/comm/all_texts.h>

#include <fmt/format.h>

#include <algorithm>

namespace palimpsest {
namespace {

/// What a run could not replace at its end.
void check_model_folder(const std::filesystem::path& folder) {
  namespace fs = std::filesystem;
  std::error_code error;
  for (const char* name : {"model", "adapter", "best"}) {
    const fs::path model = folder / name;
    if (fs::exists(model, error) && !fs::is_directory(model, error)) {
      throw UserError(
          "training.output: {} is a file, where the folder of the trained model belongs; remove it "
          "or give another folder",
          model.string());
    }
  }
}

// Names of the loss scaler's numbers.
constexpr const char* kScale = "scaler.scale";
constexpr const char* kGoodSteps = "scaler.good_steps";
constexpr const char* kHysteresis = "scaler.hysteresis_left";

/// None of a run whose loss was not scaled.
std::optional<LossScale> loss_scale(const CheckpointInfo& info) {
  const auto& numbers = info.numbers();
  if (!numbers.contains(kScale) || !numbers.contains(kGoodSteps) ||
      !numbers.contains(kHysteresis)) {
    return std::nullopt;
  }
  return LossScale{
      .scale = numbers.at(kScale),
      .good_steps = static_cast<int64_t>(numbers.at(kGoodSteps)),
      .hysteresis_left = static_cast<int64_t>(numbers.at(kHysteresis))};
}

/// All but the run's id.
CheckpointInfo describe(
    const TrainingPosition& position,
    const RunParts& parts,
    const RunConfig& config,
    int ranks) {
  const StepWindow next = parts.batches.window(position.step);
  CheckpointInfo info;
  info.set_step(position.step);
  info.set_updates(position.updates);
  info.set_seed(static_cast<uint64_t>(config.training().seed()));
  if (position.loss_scale) {
    auto& numbers = *info.mutable_numbers();
    numbers[kScale] = position.loss_scale->scale;
    numbers[kGoodSteps] = static_cast<double>(position.loss_scale->good_steps);
    numbers[kHysteresis] = static_cast<double>(position.loss_scale->hysteresis_left);
  }
  info.mutable_data()->set_epoch(next.epoch);
  info.mutable_data()->set_position(next.begin);
  info.mutable_data()->set_consumed(parts.batches.consumed(position.step));
  info.mutable_data()->set_samples(parts.batches.sample_count());
  for (const auto& [name, number] : parts.numbers) {
    (*info.mutable_numbers())[name] = number;
  }
  info.mutable_layout()->set_ranks(ranks);
  info.mutable_layout()->set_stages(parts.mesh.pipeline);
  info.mutable_layout()->set_replicate(parts.mesh.replicate);
  info.mutable_layout()->set_shard(parts.mesh.shard);
  info.mutable_layout()->set_zero(config.parallel().zero());
  return info;
}

} // namespace

RunCheckpoints::RunCheckpoints(const RunConfig& config, Ranks& ranks, bool allow_change)
    : config_(config), ranks_(ranks), output_(config.training().output()) {
  const auto changes = [&](const std::string& before) {
    return changes_of_meaning(
        load_config_text(before, "the checkpoint's config"), resolve_batch(config, ranks.size()));
  };
  ranks_.together([&] {
    start_ = decide_start(
        {.output = output_,
         .resume = config.checkpoint().resume(),
         .restart = config.training().restart(),
         .allow_change = allow_change,
         .changes = changes});
    check_model_folder(output_);
  });
  agree();
  newest_ = start_.checkpoint.value_or("");
}

/// The same on all ranks, which see one output folder.
void RunCheckpoints::agree() {
  if (ranks_.world() == nullptr) {
    return;
  }
  const std::vector<std::string> all =
      all_texts(*ranks_.world(), start_.checkpoint.value_or("none").string());
  start_.run_id = all_texts(*ranks_.world(), start_.run_id).front();
  ranks_.alike([&] {
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank] != all.front()) {
        throw EnvironmentError(
            "training.output: {} is not the same folder everywhere: rank 0 goes on from {}, rank "
            "{} from {}; give a folder that all machines share",
            output_.string(),
            all.front(),
            rank,
            all[rank]);
      }
    }
  });
}

void RunCheckpoints::claim() {
  ranks_.together([&] {
    if (ranks_.leads()) {
      check_writable_folder(output_);
      lock_ = begin_run(output_, start_);
    }
  });
  ranks_.together([&] {
    if (read_run_id(output_) != start_.run_id) {
      throw EnvironmentError(
          "training.output: {} does not hold what rank 0 wrote there; give a folder that all "
          "machines share",
          output_.string());
    }
  });
}

void RunCheckpoints::read(const std::function<void()>& part) {
  for (;;) {
    try {
      return ranks_.together(part);
    } catch (const Error& error) {
      const bool automatic = config_.checkpoint().resume() == "auto" && start_.checkpoint;
      const auto older = automatic ? checkpoint_before(output_, *start_.checkpoint) : std::nullopt;
      if (!older) {
        throw;
      }
      ranks_.recover();
      start_.notes.push_back(fmt::format(
          "passed over {}: {}; going on from {}",
          start_.checkpoint->string(),
          error.what(),
          older->string()));
      start_.checkpoint = older;
    }
  }
}

TrainingPosition RunCheckpoints::load(const RunParts& parts) {
  const CheckpointReader reader(start_.checkpoint.value());
  const CheckpointInfo& info = reader.info();
  const StepBatches& batches = parts.batches;
  if (info.data().samples() != batches.sample_count()) {
    throw UserError(
        "data: {} was written with {} samples an epoch, now there are {}; give the same files, or "
        "start anew in another output folder",
        start_.checkpoint->string(),
        info.data().samples(),
        batches.sample_count());
  }
  if (info.data().consumed() != batches.consumed(info.step())) {
    throw UserError(
        "training.global_batch_size: the {} of {} took {}, with this batch they would have taken "
        "{}, so that samples would be left out or come twice; keep the batch, or start anew in "
        "another output folder",
        counted(info.step(), "step"),
        start_.checkpoint->string(),
        counted(info.data().consumed(), "sample"),
        batches.consumed(info.step()));
  }
  const SavedStates states(parts.model.chain(), parts.store, parts.groups);
  if (states.load(reader, parts.model.originals())) {
    start_.notes.emplace_back(
        "frozen weights that the checkpoint holds in another type are read from model.path");
  }
  newest_ = *start_.checkpoint;
  numbers_.clear();
  for (const auto& [name, number] : info.numbers()) {
    numbers_[name] = number;
  }
  return {.step = info.step(), .updates = info.updates(), .loss_scale = loss_scale(info)};
}

void RunCheckpoints::save(const TrainingPosition& position, const RunParts& parts) {
  const auto long_work = ranks_.long_work("saving a checkpoint");
  const SavedStates states(parts.model.chain(), parts.store, parts.groups);
  Checkpoint checkpoint;
  checkpoint.info = describe(position, parts, config_, ranks_.size());
  checkpoint.info.set_run_id(start_.run_id);
  checkpoint.config_text = config_text(config_, ranks_.size());
  checkpoint.model = parts.model.checkpoint_layout();
  checkpoint.pieces = states.pieces();
  SavingRanks saving{.rank = ranks_.rank(), .world = ranks_.size()};
  if (ranks_.world() != nullptr) {
    saving.agree = [this](bool ok) { return all_agree(*ranks_.world(), ok); };
  }
  std::optional<int64_t> keep_last;
  if (config_.checkpoint().has_keep_last()) {
    keep_last = config_.checkpoint().keep_last();
  }
  SavedCheckpoint saved;
  ranks_.alike(
      [&] { saved = save_checkpoint(output_, checkpoint, states.source(), saving, keep_last); });
  for (const std::string& warning : saved.warnings) { // the same one may come after every save
    if (std::ranges::find(warnings_, warning) == warnings_.end()) {
      warnings_.push_back(warning);
    }
  }
  if (!saved.folder.empty()) {
    newest_ = saved.folder;
  } else if (ranks_.leads()) {
    warnings_.push_back(fmt::format(
        "step {} was not saved: {} is not finite; the checkpoints before it are kept",
        position.step,
        saved.not_finite));
  }
}

bool RunCheckpoints::has(int64_t step) const {
  return newest_.filename() == step_folder(step);
}

} // namespace palimpsest
