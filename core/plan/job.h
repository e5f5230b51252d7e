#pragma once

// The job: everything a plan depends on, and what follows from it.
//
//   Job job({.model = model, .stages = {{0, 9}}, .micro_batches = 4, .mesh = {.shard = 2}, .placement = {.zero = 3}});
//   job.size({SlotKind::kParamShard, 0});                 // bytes of this rank's half
//
// Immutable; safe to share among threads. Stage s (a run of blocks) sits on pipeline rank s %
// mesh.pipeline.

#include <palimpsest/core/plan/cost_model.h>
#include <palimpsest/core/plan/op.h>
#include <palimpsest/core/plan/slot.h>
#include <palimpsest/core/plan/unit_layout.h>

#include <array>
#include <cstdint>
#include <vector>

namespace palimpsest {

/// ZeRO as a table (which states are sharded) and the tier on which each kind of slot rests between
/// uses.
struct Placement {
  int zero = 0; ///< 0 to 3
  TierId parameters = TierId::kDevice; ///< off the device only as shards (zero: 3)
  TierId optimizer = TierId::kDevice;
  TierId gradients = TierId::kDevice;
  TierId activations = TierId::kDevice;

  bool shards_optimizer() const {
    return zero >= 1;
  }
  bool shards_gradients() const {
    return zero >= 2;
  }
  bool shards_parameters() const {
    return zero >= 3;
  }
  /// UPDATE leaves whole parameters new only in this rank's part: PUBLISH gathers them.
  bool publishes() const {
    return shards_optimizer() && !shards_parameters();
  }
};

/// rank = (pipeline * replicate + i) * shard + j. Plain data parallelism is `replicate`.
struct Mesh {
  int pipeline = 1;
  int replicate = 1;
  int shard = 1;

  int data() const {
    return replicate * shard;
  }
  int world() const {
    return pipeline * data();
  }
  int pipeline_rank(int rank) const {
    return rank / data();
  }
  int data_rank(int rank) const {
    return rank % data();
  }
  /// Which micro-batches a rank takes: r of the global micro-batch g = j N + r. Replicas of a shard
  /// count next to each other, so that part r of a unit cut into N lies in the shard of rank r.
  int batch_rank(int rank) const {
    const int data = data_rank(rank);
    return data % shard * replicate + data / shard;
  }
  /// The rank with the same data-parallel coordinate on another pipeline rank.
  int peer(int rank, int pipeline_rank) const {
    return pipeline_rank * data() + data_rank(rank);
  }
};

/// Seconds per byte of each link. `reduce_workspace`: what a reduce-scatter receives besides its
/// operands, in units (by all-to-all: one). Where communication was not measured to overlap with
/// computing, it is charged to compute.
struct LinkCosts {
  double communication = 0;
  double copy = 0; ///< device to host and back
  double disk = 0;
  double reduce_workspace = 1.0;
  bool communication_overlaps = true;
};

/// How the buffers of a unit of a step are cut over the shard group: one piece where its states are
/// whole.
UnitLayout unit_layout(
    int64_t elements,
    bool trainable,
    const Mesh& mesh,
    const Placement& placement,
    bool reproducible);

struct JobDescription {
  ModelCost model{};
  std::vector<BlockRange> stages{}; ///< cover the blocks in order; one may be empty
  int micro_batches = 1;
  Mesh mesh{};
  Placement placement{};
  LinkCosts links{};
  bool training = true;
  /// Every layout with the same micro-batches gives the same bits: each micro-batch's gradient is
  /// added by itself, over all data-parallel ranks in order, onto a running shard.
  bool reproducible = false;
};

/// A place that is live when a step starts and when it ends.
struct PersistentPlace {
  Place place{};
  bool changes = false; ///< by the step
};

/// The communicator of a collective: world ranks in ascending order. kData: shards and replicas
/// together.
struct RankGroup {
  enum class Axis : uint8_t { kShard, kReplicate, kData, kTie, kWorld } axis = Axis::kWorld;
  std::vector<int> ranks;

  auto operator<=>(const RankGroup&) const = default;
};

class Job {
 public:
  /// Throws UserError where the description contradicts itself (stages that do not cover the
  /// blocks, a shard group with nothing to shard, whole parameters off the device, ...).
  explicit Job(JobDescription description);

  const ModelCost& model() const {
    return description_.model;
  }
  const std::vector<BlockRange>& stages() const {
    return description_.stages;
  }
  int micro_batches() const {
    return description_.micro_batches;
  }
  const Mesh& mesh() const {
    return description_.mesh;
  }
  const Placement& placement() const {
    return description_.placement;
  }
  const LinkCosts& links() const {
    return description_.links;
  }
  bool training() const {
    return description_.training;
  }
  bool reproducible() const {
    return description_.reproducible;
  }
  const JobDescription& description() const {
    return description_;
  }

  // ---- what follows from the model
  /// Blocks that read the value, ascending.
  const std::vector<int>& readers(ValueRef value) const;
  /// At or after a trainable unit along the data flow: only these blocks need a BACKWARD (the
  /// terminal block's happens in its FORWARD), only their values have gradients.
  bool differentiable(int block) const {
    return differentiable_[static_cast<size_t>(block)];
  }
  /// Its units that are not frozen.
  const std::vector<int>& trainable(int block) const {
    return trainable_[static_cast<size_t>(block)];
  }
  /// Its reads that have gradients.
  const std::vector<ValueRef>& graded_reads(int block) const {
    return graded_reads_[static_cast<size_t>(block)];
  }
  /// Indices of its values that some block reads.
  const std::vector<int>& read_values(int block) const {
    return read_values_[static_cast<size_t>(block)];
  }

  // ---- what follows from the stages
  /// The pipeline rank of a block.
  int home(int block) const {
    return home_[static_cast<size_t>(block)];
  }
  /// Units used on a pipeline rank, ascending; the trained ones are those not frozen.
  const std::vector<int>& units_of(int pipeline_rank) const {
    return units_of_[static_cast<size_t>(pipeline_rank)];
  }
  const std::vector<int>& trained_units(int pipeline_rank) const {
    return trained_units_[static_cast<size_t>(pipeline_rank)];
  }
  /// Blocks of a pipeline rank that use the unit, ascending; empty where none does.
  const std::vector<int>& users(int unit, int pipeline_rank) const;
  /// Blocks of any rank that use the unit, ascending.
  const std::vector<int>& users(int unit) const {
    return all_users_[static_cast<size_t>(unit)];
  }
  /// Pipeline ranks that use the unit, ascending.
  const std::vector<int>& tie_ranks(int unit) const {
    return tie_ranks_[static_cast<size_t>(unit)];
  }

  // ---- what follows from placement and mesh
  /// Whether a trainable unit goes through this axis; those it does, it does in the order shard,
  /// replicate, tie. Where sums are reproducible, shard stands for all data-parallel ranks.
  bool has_axis(int unit, ReduceAxis axis) const;
  /// The parameter slot that persists.
  Slot weight(int unit) const;
  /// The gradient that UPDATE reads.
  Slot gradient(int unit) const;
  /// Whether each micro-batch is reduced by itself, else all of them at once.
  bool reduces_each_micro_batch() const {
    return placement().shards_gradients() || reproducible();
  }
  /// How many ranks the axis sums over.
  int axis_ranks(int unit, ReduceAxis axis) const;
  /// How a unit's buffers are cut over the shard group. Its elements must be known.
  UnitLayout layout(int unit) const;
  const std::vector<PersistentPlace>& persistent(int pipeline_rank) const {
    return persistent_[static_cast<size_t>(pipeline_rank)];
  }
  bool is_persistent(const Place& place, int pipeline_rank) const;
  /// Bytes on the rank that holds most, padding included. `tape` matters for kTape only.
  int64_t size(const Slot& slot, TapeMode tape = TapeMode::kFull) const;
  /// Of a collective that `rank` takes part in.
  RankGroup group(int rank, const Op& op) const;

  // ---- dense numbers, for tables
  /// 0 <= slot_id < slot_count, or -1 for a slot that this job cannot have.
  int slot_id(const Slot& slot) const;
  int slot_count() const {
    return slot_count_;
  }

 private:
  void validate() const;
  void derive_data_flow();
  void derive_users();
  void derive_slots();
  int64_t unit_size(const Slot& slot) const;

  JobDescription description_;
  std::vector<int> value_offset_; // of block -1 (the loader), 0, 1, ...
  std::vector<std::vector<int>> readers_; // by value
  std::vector<bool> differentiable_;
  std::vector<std::vector<int>> trainable_;
  std::vector<std::vector<ValueRef>> graded_reads_;
  std::vector<std::vector<int>> read_values_;
  std::vector<int> home_;
  std::vector<std::vector<int>> units_of_;
  std::vector<std::vector<int>> trained_units_;
  std::vector<std::vector<int>> users_; // by unit * pipeline + rank
  std::vector<std::vector<int>> all_users_;
  std::vector<std::vector<int>> tie_ranks_;
  std::vector<std::vector<PersistentPlace>> persistent_;
  std::array<int, kSlotKinds> slot_offset_{};
  int slot_count_ = 0;
};

} // namespace palimpsest
