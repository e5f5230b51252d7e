#pragma once

// One symbolic interpreter of the plans of all ranks together: it verifies them, and estimates
// their bytes and seconds.
//
//   PlanReport report = simulate(plans, job);                         // plans of the pipeline ranks; PlanError if invalid
//   report.ranks[0].peak[TierId::kDevice];
//   simulate(spread(plans, job.mesh()), job, promised);           // plans of all world ranks, against a budget
//
// Nothing here computes a tensor: a slot is a name, its size and, for gradients, the set of
// contributions in it.

#include <palimpsest/core/plan/effects.h>
#include <palimpsest/core/plan/job.h>
#include <palimpsest/core/plan/plan.h>

#include <array>
#include <cstdint>
#include <vector>

namespace palimpsest {

/// An array indexed by an enumeration.
template <typename Key, typename T, int size>
struct EnumArray : std::array<T, size> {
  T& operator[](Key key) {
    return std::array<T, size>::operator[](static_cast<size_t>(key));
  }
  const T& operator[](Key key) const {
    return std::array<T, size>::operator[](static_cast<size_t>(key));
  }
};

using TierBytes = EnumArray<TierId, int64_t, kTiers>;

/// What bytes are reported by: the kinds of slots, in the same order, and workspace.
enum class PlanCategory : uint8_t {
  kValue,
  kGrad,
  kTape,
  kWeightJobs,
  kParam,
  kParamShard,
  kGradBuffer,
  kGradShard,
  kOptimizerState,
  kWorkspace,
};
constexpr int kPlanCategories = 10;

/// The categories that are kinds of slots: all but workspace.
inline constexpr std::array kSlotCategories = {
    PlanCategory::kValue,
    PlanCategory::kGrad,
    PlanCategory::kTape,
    PlanCategory::kWeightJobs,
    PlanCategory::kParam,
    PlanCategory::kParamShard,
    PlanCategory::kGradBuffer,
    PlanCategory::kGradShard,
    PlanCategory::kOptimizerState,
};

std::string_view to_text(PlanCategory category);

enum class Lane : uint8_t { kCompute, kCommunication, kDeviceToHost, kHostToDevice, kDisk };
constexpr int kLanes = 5;

std::string_view to_text(Lane lane);

struct RankReport {
  TierBytes peak{}; ///< most bytes at once, workspace included
  /// Most bytes at once of each category; their maxima need not fall together.
  EnumArray<TierId, EnumArray<PlanCategory, int64_t, kPlanCategories>, kTiers> category{};
  /// Bytes of each category at the moment of the device's peak: they add up to it.
  EnumArray<PlanCategory, int64_t, kPlanCategories> at_peak{};
  /// Most bytes on the device of values, gradients of values, tapes and weight jobs together.
  int64_t activation_peak = 0;
  std::vector<int64_t>
      device_bytes; ///< during each operation: before what it frees, its workspace included
  int64_t forwards = 0; ///< executed FORWARDs
  int64_t reruns = 0; ///< those of a (block, micro-batch) that had run before
  EnumArray<Lane, double, kLanes> busy{}; ///< seconds
  double forward_flops = 0; ///< first runs
  double backward_flops = 0;
  double recompute_flops = 0; ///< reruns, and what lean tapes redo

  /// Recomputed over all.
  double recompute_share() const;
};

struct PlanReport {
  std::vector<RankReport> ranks; ///< by world rank
  double seconds = 0; ///< the longest path through the operations of all ranks

  /// Of the rank that needs most.
  int64_t peak(TierId tier) const;
};

/// Most bytes by world rank and tier.
using PlanBudget = std::vector<TierBytes>;

/// The plans of all world ranks, by reference: data-parallel peers run the same one.
using WorldPlans = std::vector<const StepPlan*>;
WorldPlans spread(const Plans& plans, const Mesh& mesh);

/// Throws PlanError naming the rule that the plans break, or the tier that would be over budget. An
/// empty budget allows everything.
PlanReport simulate(const WorldPlans& plans, const Job& job, const PlanBudget& budget = {});

/// `plans`: of the pipeline ranks.
PlanReport simulate(const Plans& plans, const Job& job, const PlanBudget& budget = {});

/// What simulate() promised, as a budget.
PlanBudget promised(const PlanReport& report);

} // namespace palimpsest
