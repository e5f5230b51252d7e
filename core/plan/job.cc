#include <palimpsest/core/plan/job.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <numeric>

namespace palimpsest {
namespace {

size_t at(int index) {
  return static_cast<size_t>(index);
}

} // namespace

UnitLayout unit_layout(
    int64_t elements,
    bool trainable,
    const Mesh& mesh,
    const Placement& placement,
    bool reproducible) {
  if (!trainable) {
    return cut_unit(elements, placement.shards_parameters() ? mesh.shard : 1);
  }
  return cut_unit(elements, mesh.shard, reproducible ? mesh.replicate : 1);
}

Job::Job(JobDescription description) : description_(std::move(description)) {
  validate();
  derive_data_flow();
  derive_users();
  derive_slots();
}

void Job::validate() const {
  model().validate();
  const Mesh& m = mesh();
  if (m.pipeline < 1 || m.replicate < 1 || m.shard < 1 || micro_batches() < 1) {
    throw UserError(
        "pipeline {}, replicate {}, shard {} and micro-batches {} must all be at least 1",
        m.pipeline,
        m.replicate,
        m.shard,
        micro_batches());
  }
  if (placement().zero < 0 || placement().zero > 3) {
    throw UserError("zero: {} is not allowed; choose 0, 1, 2 or 3", placement().zero);
  }
  if (placement().parameters != TierId::kDevice && !placement().shards_parameters()) {
    throw UserError("parameters rest off the device only as shards; set zero: 3");
  }
  if (m.shard > 1 && !placement().shards_optimizer()) {
    throw UserError(
        "a shard group of {} ranks has nothing to shard; set zero: 1, 2 or 3, or use replicate",
        m.shard);
  }
  int block = 0;
  for (const BlockRange& stage : stages()) {
    if (stage.begin != block || stage.end < block) {
      throw UserError(
          "stage of blocks [{}, {}): stages must follow each other from block 0 without gaps",
          stage.begin,
          stage.end);
    }
    block = stage.end;
  }
  const auto ranks = at(m.pipeline);
  if (block != static_cast<int>(model().blocks.size()) || stages().size() % ranks != 0) {
    throw UserError(
        "{} stages that end at block {} do not cover {} blocks evenly on {} pipeline ranks",
        stages().size(),
        block,
        model().blocks.size(),
        m.pipeline);
  }
}

void Job::derive_data_flow() {
  const auto& blocks = model().blocks;
  value_offset_ = {0, 1};
  for (const BlockCost& block : blocks) {
    value_offset_.push_back(value_offset_.back() + static_cast<int>(block.value_bytes.size()));
  }
  readers_.resize(at(value_offset_.back()));
  for (size_t number = 0; number < blocks.size(); ++number) {
    const BlockCost& block = blocks[number];
    auto& trained = trainable_.emplace_back();
    for (const int unit : block.units) {
      if (!model().units[at(unit)].frozen) {
        trained.push_back(unit);
      }
    }
    bool reached = !trained.empty();
    auto& graded = graded_reads_.emplace_back();
    for (const ValueRef value : block.reads) {
      readers_[at(value_offset_[at(value.producer + 1)] + value.index)].push_back(
          static_cast<int>(number));
      if (value.producer != kLoader && differentiable_[at(value.producer)]) {
        graded.push_back(value);
        reached = true;
      }
    }
    differentiable_.push_back(reached);
  }
  for (size_t number = 0; number < blocks.size(); ++number) {
    auto& read = read_values_.emplace_back();
    for (int index = 0; index < static_cast<int>(blocks[number].value_bytes.size()); ++index) {
      if (!readers({static_cast<int>(number), index}).empty()) {
        read.push_back(index);
      }
    }
  }
}

void Job::derive_users() {
  const size_t ranks = at(mesh().pipeline);
  const size_t units = model().units.size();
  users_.resize(units * ranks);
  all_users_.resize(units);
  tie_ranks_.resize(units);
  units_of_.resize(ranks);
  trained_units_.resize(ranks);
  for (size_t stage = 0; stage < stages().size(); ++stage) {
    for (int block = stages()[stage].begin; block < stages()[stage].end; ++block) {
      home_.push_back(static_cast<int>(stage % ranks));
      for (const int unit : model().blocks[at(block)].units) {
        users_[at(unit) * ranks + stage % ranks].push_back(block);
        all_users_[at(unit)].push_back(block);
      }
    }
  }
  for (size_t unit = 0; unit < units; ++unit) {
    for (size_t rank = 0; rank < ranks; ++rank) {
      if (users_[unit * ranks + rank].empty()) {
        continue;
      }
      tie_ranks_[unit].push_back(static_cast<int>(rank));
      units_of_[rank].push_back(static_cast<int>(unit));
      if (!model().units[unit].frozen) {
        trained_units_[rank].push_back(static_cast<int>(unit));
      }
    }
  }
  for (size_t unit = 0; unit < units && reproducible(); ++unit) {
    if (!model().units[unit].frozen && tie_ranks_[unit].size() > 1) {
      throw UserError(
          "reproducible: {} is tied across {} pipeline ranks, whose sums are not; use one stage or "
          "an untied model",
          model().units[unit].name,
          tie_ranks_[unit].size());
    }
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    auto& places = persistent_.emplace_back();
    for (const int unit : units_of_[rank]) {
      const bool trained = !model().units[at(unit)].frozen;
      places.push_back({{weight(unit), placement().parameters}, trained});
      if (trained) {
        places.push_back(
            {{{.kind = SlotKind::kOptimizerState, .owner = unit}, placement().optimizer}, true});
      }
    }
  }
}

void Job::derive_slots() {
  const int values = value_offset_.back() * micro_batches();
  const int runs = static_cast<int>(model().blocks.size()) * micro_batches();
  const int units = static_cast<int>(model().units.size());
  const std::array<int, kSlotKinds> counts{
      values, values, runs, runs, units, units, units, units, units};
  for (size_t kind = 0; kind < counts.size(); ++kind) {
    slot_offset_[kind] = slot_count_;
    slot_count_ += counts[kind];
  }
}

const std::vector<int>& Job::readers(ValueRef value) const {
  return readers_[at(value_offset_[at(value.producer + 1)] + value.index)];
}

const std::vector<int>& Job::users(int unit, int pipeline_rank) const {
  return users_[at(unit) * at(mesh().pipeline) + at(pipeline_rank)];
}

bool Job::has_axis(int unit, ReduceAxis axis) const {
  if (axis == ReduceAxis::kShard) {
    return placement().shards_optimizer() || reproducible();
  }
  const bool joined = axis == ReduceAxis::kReplicate && reproducible(); // in the shard axis
  return !joined && axis_ranks(unit, axis) > 1;
}

int Job::axis_ranks(int unit, ReduceAxis axis) const {
  switch (axis) {
    case ReduceAxis::kShard:
      return reproducible() ? mesh().data() : mesh().shard;
    case ReduceAxis::kReplicate:
      return mesh().replicate;
    case ReduceAxis::kTie:
      return static_cast<int>(tie_ranks(unit).size());
  }
  return 1;
}

Slot Job::weight(int unit) const {
  const bool sharded = placement().shards_parameters();
  return {.kind = sharded ? SlotKind::kParamShard : SlotKind::kParam, .owner = unit};
}

Slot Job::gradient(int unit) const {
  const bool sharded = has_axis(unit, ReduceAxis::kShard);
  return {.kind = sharded ? SlotKind::kGradShard : SlotKind::kGradBuffer, .owner = unit};
}

bool Job::is_persistent(const Place& place, int pipeline_rank) const {
  const Slot& slot = place.slot;
  if (per_micro_batch(slot.kind) || users(slot.owner, pipeline_rank).empty()) {
    return false;
  }
  if (slot.kind == SlotKind::kOptimizerState) {
    return place.tier == placement().optimizer && !model().units[at(slot.owner)].frozen;
  }
  return slot == weight(slot.owner) && place.tier == placement().parameters;
}

UnitLayout Job::layout(int unit) const {
  const UnitCost& cost = model().units[at(unit)];
  return unit_layout(cost.elements, !cost.frozen, mesh(), placement(), reproducible());
}

int64_t Job::unit_size(const Slot& slot) const {
  const UnitCost& unit = model().units[at(slot.owner)];
  const UnitLayout cut = layout(slot.owner);
  const auto of = [&](int64_t bytes, int64_t elements) {
    return bytes * kByteBlock / unit.elements * elements / kByteBlock;
  };
  const auto whole = [&](int64_t bytes) {
    return unit.elements == 0 ? bytes : of(bytes, cut.whole());
  };
  const auto part = [&](int64_t bytes, int64_t elements) {
    return unit.elements == 0 ? (bytes + mesh().shard - 1) / mesh().shard : of(bytes, elements);
  };
  switch (slot.kind) {
    case SlotKind::kParam:
      return whole(unit.parameter_bytes);
    case SlotKind::kParamShard:
      return part(unit.parameter_bytes, cut.shard);
    case SlotKind::kGradBuffer:
      return whole(unit.gradient_bytes);
    case SlotKind::kGradShard:
      return part(unit.gradient_bytes, cut.shard);
    case SlotKind::kOptimizerState:
      return part(unit.state_bytes, cut.range(0).size());
    default:
      return 0;
  }
}

int64_t Job::size(const Slot& slot, TapeMode tape) const {
  switch (slot.kind) {
    case SlotKind::kValue:
    case SlotKind::kGrad:
      return slot.owner == kLoader ? model().batch_bytes
                                   : model().blocks[at(slot.owner)].value_bytes[at(slot.index)];
    case SlotKind::kTape: {
      const BlockCost& block = model().blocks[at(slot.owner)];
      return tape == TapeMode::kLean ? block.lean_bytes : block.full_bytes;
    }
    case SlotKind::kWeightJobs:
      return model().blocks[at(slot.owner)].weight_jobs_bytes;
    default:
      return unit_size(slot);
  }
}

RankGroup Job::group(int rank, const Op& op) const {
  RankGroup group;
  if (op.kind == OpKind::kAgree) {
    group.ranks.resize(at(mesh().world()));
    std::iota(group.ranks.begin(), group.ranks.end(), 0);
    return group;
  }
  const ReduceAxis axis = op.kind == OpKind::kReduce ? op.axis : ReduceAxis::kShard;
  if (axis == ReduceAxis::kTie) {
    group.axis = RankGroup::Axis::kTie;
    for (const int other : tie_ranks(op.unit)) {
      group.ranks.push_back(mesh().peer(rank, other));
    }
    return group;
  }
  const bool shard = axis == ReduceAxis::kShard;
  if (op.kind == OpKind::kReduce && reproducible()) {
    group.axis = RankGroup::Axis::kData;
    group.ranks.resize(at(mesh().data()));
    std::iota(group.ranks.begin(), group.ranks.end(), rank - mesh().data_rank(rank));
    return group;
  }
  group.axis = shard ? RankGroup::Axis::kShard : RankGroup::Axis::kReplicate;
  const int stride = shard ? 1 : mesh().shard;
  const int length = shard ? mesh().shard : mesh().replicate;
  const int first = rank - (rank / stride % length) * stride;
  for (int member = 0; member < length; ++member) {
    group.ranks.push_back(first + member * stride);
  }
  return group;
}

int Job::slot_id(const Slot& slot) const {
  const auto within = [](int index, int count) { return index >= 0 && index < count; };
  const int blocks = static_cast<int>(model().blocks.size());
  const int first = slot_offset_[static_cast<size_t>(slot.kind)];
  if (!per_micro_batch(slot.kind)) {
    return within(slot.owner, static_cast<int>(model().units.size())) ? first + slot.owner : -1;
  }
  if (!within(slot.mb, micro_batches())) {
    return -1;
  }
  if (slot.kind == SlotKind::kTape || slot.kind == SlotKind::kWeightJobs) {
    return within(slot.owner, blocks) ? first + slot.owner * micro_batches() + slot.mb : -1;
  }
  if (!within(slot.owner + 1, blocks + 1)) {
    return -1;
  }
  const int offset = value_offset_[at(slot.owner + 1)];
  const int count = value_offset_[at(slot.owner + 2)] - offset;
  return within(slot.index, count) ? first + (offset + slot.index) * micro_batches() + slot.mb : -1;
}

} // namespace palimpsest
