#pragma once

// The communication signature of a plan: what ranks must agree on before they talk to each other.
//
//   communication_hash(plans, job) == what every other rank computes;   // compared at the start and at every replan
//
// Restricted to a group, the signatures of the group's ranks are equal.

#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

/// A collective (kind, unit, micro-batches, group) or a transfer (kind, slot, peer); other fields
/// keep their defaults.
struct SignatureLine {
  OpKind kind = OpKind::kAgree;
  int unit = -1;
  MicroBatchRange mbs{};
  RankGroup group{};
  Slot slot{};
  int peer = -1;

  auto operator<=>(const SignatureLine&) const = default;
};

std::vector<SignatureLine> signature(const StepPlan& plan, int rank, const Job& job);

/// One number for the communication of all ranks; `plans`: of the pipeline ranks. The same on every
/// machine.
uint64_t communication_hash(const Plans& plans, const Job& job);

} // namespace palimpsest
