#pragma once

// Small models and jobs for tests of plans.
//
//   Case example = make({.model = "tied", .schedule = "1f1b", .ranks = 2, .zero = 2, .replicate = 1, .shard = 2});
//   Plans plans = example.plans();

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan_pass.h>
#include <palimpsest/core/plan/schedule.h>
#include <palimpsest/core/plan/simulate.h>

#include <optional>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// Embedding, layers of blocks, terminal head.
struct ChainShape {
  int layers = 4;
  int per_layer = 2;
  bool tied = false; ///< the head uses the embedding's unit
  int frozen_layers = 0; ///< the embedding and the first layers are frozen
  bool adapters = false; ///< small trainable units beside frozen bases
  bool skips =
      false; ///< the second half reads a value of its mirror image in the first half, as in a U-Net
  bool shared = false; ///< ... the carried value instead of a second one
  bool saves_nothing = false; ///< tapes share no storage with what the blocks read
};

/// Units of 6, 12 and 36 bytes; values of 1 byte (skips 2), tapes of 4 or 8; blocks of 1 second a
/// part.
ModelCost chain(const ChainShape& shape);

/// decoder, tied, unet, unet_shared, unet_plain_concat, frozen_prefix, adapters, long.
const std::vector<std::string>& model_names();
ModelCost named_model(const std::string& name);

/// Stages of equally many blocks.
std::vector<BlockRange> even_stages(const ModelCost& model, int count);

/// Stages of equally many layers; the embedding joins the first, the head the last.
std::vector<BlockRange> layer_stages(const ModelCost& model, int count);

/// none, full, every_2, uniform_2, sqrt, lean, keep_lean, key_layers, nested.
const std::vector<std::string>& policy_names();
Segments named_segments(const std::string& name, const ModelCost& model);

/// no, activations, optimizer, gradients, parameters, all_host, all_disk.
const std::vector<std::string>& offload_names();

struct Choice {
  std::string model = "decoder";
  std::string schedule = "1f1b";
  int ranks = 1;
  int micro_batches = 2;
  std::string policy = "none";
  int zero = 0;
  int replicate = 1;
  int shard = 1;
  std::string away = "no";
  int64_t window = 0;
  int read_ahead = 1;
  int lag = 0;
  bool reproducible = false;
  LinkCosts links{};
  std::optional<ModelCost> own{}; ///< instead of `model`
};

std::string to_text(const Choice& choice);

struct Case {
  Job job;
  Schedule schedule;
  PlanOptions options;

  Plans plans() const;
};

/// A shard group without anything to shard becomes replicas; parameters rest off the device only
/// with zero: 3; sums are not reproducible where a schedule or a tied unit forbids it.
Case make(const Choice& choice);

/// The plans of all world ranks, by value.
Plans spread_copies(const Plans& plans, const Mesh& mesh);
PlanReport simulate_world(const Plans& world, const Job& job, const PlanBudget& budget = {});

/// Whether PALIMPSEST_FULL asks for the whole of a sampled test.
bool full_run();

} // namespace palimpsest::testing
