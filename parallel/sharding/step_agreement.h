#pragma once

// What all ranks decide together at AGREE, from what each of them has of a step.
//
//   StepAgreement agreement(layouts, groups, memory);          // of the trained units, in order
//   Agreement all = agreement.agree({.finite = true, .norm_parts = mine, .losses = losses});
//
// Two small all-gathers: the losses and the flags over the data-parallel ranks, and, where
// gradients are sharded, their norms' parts over one replica's shards. Replicas hold the same
// gradients and are not counted again.

#include <palimpsest/core/contracts/slot_store.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/parallel/mesh/mesh_groups.h>

#include <vector>

namespace palimpsest {

class StepAgreement final : public Agreer {
 public:
  /// `layouts`: of the trained units in the plan's order. One pipeline stage.
  StepAgreement(std::vector<UnitLayout> layouts, MeshGroups groups, MemoryContext& memory);

  /// `mine.norm_parts`: one part per chunk of what this rank owns, unit after unit; `mine.losses`:
  /// by this rank's micro-batch, equally many on all ranks. Returns the same on all ranks: the parts
  /// of all chunks in (unit, chunk) order, the losses in the order of global micro-batches, and
  /// whether all were finite and had the memory they needed. Out of memory itself, it has sent
  /// nothing and may be called again.
  Agreement agree(Agreement mine) override;

 private:
  /// Room for `count` numbers of each rank of the group; undefined without a group.
  static at::Tensor room(const Communicator* group, size_t count);
  size_t padded_norm_parts() const;
  void share_losses(Agreement& agreement, const at::Tensor& room) const;
  void share_norm_parts(Agreement& agreement, const at::Tensor& room) const;

  std::vector<UnitLayout> layouts_;
  MeshGroups groups_;
  MemoryContext& memory_;
};

} // namespace palimpsest
