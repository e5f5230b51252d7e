#pragma once

// What a config says, as the settings that each part takes. Pure: nothing is opened or measured.
//
//   OpenedData data = open_data(data_settings(config, model));
//   const Mesh mesh = resolve_mesh(ranks, mesh_request(config));

#include <palimpsest/core/config/derive.h>
#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/contracts/param_store.h>
#include <palimpsest/core/contracts/precision.h>
#include <palimpsest/core/data/open_data.h>
#include <palimpsest/core/data/step_batches.h>
#include <palimpsest/core/engine/trainer.h>
#include <palimpsest/core/optim/groups.h>
#include <palimpsest/core/optim/register_optimizers.h>
#include <palimpsest/core/optim/schedule.h>
#include <palimpsest/launcher/compose/model.h>
#include <palimpsest/parallel/mesh/mesh_groups.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace palimpsest {

/// Where tokenizer and chat template are looked for: data.tokenizer, else the model's folder; where
/// that is gone, the copy in the checkpoint that a run goes on from. "" where there is neither.
std::filesystem::path texts_folder(
    const RunConfig& config,
    const std::optional<std::filesystem::path>& checkpoint);

/// Samples of the model's kind, in the length that the config gives or the model allows. `checkpoint`
/// is the model's.
DataSettings data_settings(
    const RunConfig& config,
    const Model& model,
    const std::optional<std::filesystem::path>& checkpoint = std::nullopt);

/// The batches of `rank` of the world.
BatchSettings batch_settings(
    const RunConfig& config,
    const BatchSizes& sizes,
    const Mesh& mesh,
    int rank);

/// The sizes of a micro-batch among which a run under a budget may choose, ascending; one where the
/// config says it, or leaves nothing to choose by.
std::vector<int64_t> micro_batch_candidates(const RunConfig& config, const BatchSizes& sizes);

/// The ways of sharing states that are tried, those that exchange least first: the config's one
/// alone, unless several ranks let `auto` choose. Then, where parallel.zero is not given, all stages;
/// and of stage 3, where nothing says when parameters are gathered, from all of the step down to just
/// before their use.
std::vector<RunConfig::Parallel> parallel_candidates(const RunConfig& config, int ranks);

MeshRequest mesh_request(const RunConfig& config);

OptimizerSettings optimizer_settings(const RunConfig::Optimizer& config);

StatePrecision state_precision(const RunConfig::Precision& config);
LossScaling loss_scaling(const RunConfig::LossScaling& config);

ScheduleSettings schedule_settings(const RunConfig::Scheduler& config, int64_t steps);

/// Seed, learning rate and clipping of a run of `steps` steps. UserError for a schedule that does
/// not fit them.
Trainer::Settings trainer_settings(const RunConfig& config, int64_t steps);

std::vector<GroupRule> group_rules(const RunConfig::Optimizer& config);

/// The parameter groups of each unit of the chain, over the whole of it; of a frozen one none.
/// UserError for a rule that matches nothing.
std::vector<std::vector<GroupRange>> parameter_groups(
    const RunConfig::Optimizer& config,
    const Chain& chain);

} // namespace palimpsest
