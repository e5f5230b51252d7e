#include <palimpsest/launcher/compose/plan_choice.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/engine/memory_shortage.h>
#include <palimpsest/launcher/compose/agreed_cost.h>
#include <palimpsest/launcher/compose/settings.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/memory/profile/profile.h>

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <utility>

namespace palimpsest {
namespace {

/// A block is measured with its weights, their gradients and a working copy.
int64_t bytes_to_measure(const Chain& chain) {
  int64_t largest = 0;
  for (const auto& unit : chain.units) {
    largest = std::max(largest, unit->numel());
  }
  return 3 * largest * static_cast<int64_t>(sizeof(float));
}

/// Whether a block takes so long with these samples that with more it would be no faster for each.
bool is_long(const ModelCost& cost) {
  constexpr double kLongSeconds = 1;
  return std::ranges::any_of(cost.blocks, [](const BlockCost& block) {
    return block.forward_seconds + block.input_seconds + block.weight_seconds > kLongSeconds;
  });
}

class PlanChoice {
 public:
  PlanChoice(const PlannedRun& run, BatchSizes batch, const LinkCosts& links)
      : run_(run), ranks_(run.ranks), batch_(batch), links_(links) {}

  ChosenPlans choose() {
    const DeviceBudget budget = device_budget();
    std::optional<Candidate> best;
    for (const int64_t samples : micro_batch_candidates(run_.config, batch_)) {
      if (best) { // so that a block too large to be measured is found out
        run_.memory.set_limit(budget.bytes.value_or(std::numeric_limits<int64_t>::max()));
      }
      try {
        set_micro_batch(samples);
        const ModelCost cost = measure();
        Candidate candidate = plan_with(cost, budget);
        if (best && candidate.seconds > best->seconds) {
          break;
        }
        best.emplace(std::move(candidate));
        if (is_long(cost)) {
          break;
        }
      } catch (const Error& error) {
        if (!best || error.exit_code() == kStoppedExitCode) {
          throw;
        }
        ranks_.recover();
        break;
      }
    }
    run_.memory.set_limit(std::numeric_limits<int64_t>::max());
    set_micro_batch(best->chosen.batch.micro);
    return std::move(best->chosen);
  }

 private:
  struct Candidate {
    ChosenPlans chosen;
    double seconds = 0; // of a full step
  };

  /// A plan without room.
  struct Refusal {
    InfeasibleBudget error;
    std::optional<int> micro_batches; // of its step; unset: of an evaluation
  };

  int micro_batches() const {
    return step_sizes(run_.batches).front();
  }

  void set_micro_batch(int64_t samples) {
    run_.batches.set_micro_batch_size(samples);
    batch_.accumulation = batch_.global / (samples * batch_.data_parallel);
    batch_.micro = samples;
  }

  /// The same on all ranks.
  DeviceBudget device_budget() {
    std::array<int64_t, 2> agreed = {Device::cpu().available_memory() / ranks_.here().ranks, 0};
    agreed[1] = -run_.memory.total().live; // the least of both is agreed on
    if (ranks_.world() != nullptr) {
      ranks_.world()
          ->all_reduce(at::from_blob(agreed.data(), {2}, at::kLong), ReduceOp::kMin)
          .wait();
    }
    DeviceBudget budget{.bytes = {}, .already_held = -agreed[1]};
    if (run_.config.memory().has_device_budget()) {
      budget.bytes = run_.config.memory().device_budget();
    } else if (needs_budget(run_.config.activation_checkpointing().policy())) {
      // What the system and other programs will want meanwhile stays free.
      constexpr int64_t kReservedShare = 10;
      budget.bytes = agreed[0] - agreed[0] / kReservedShare;
    }
    return budget;
  }

  /// What the blocks cost on a micro-batch; the same on all ranks.
  ModelCost measure() {
    const auto long_work = ranks_.long_work("measuring the model");
    ModelCost cost;
    ranks_.together([&] {
      require_memory(
          ranks_.here().ranks * bytes_to_measure(run_.chain), "measuring the largest block");
      name_shortages(
          run_.memory,
          "measuring the model",
          [&] {
            cost = profile(
                run_.chain,
                run_.batches.load(0).front(),
                run_.memory,
                {.moment_count = run_.moment_count,
                 .precision = state_precision(run_.config.precision()),
                 .before_block = [this] { ranks_.end_if_any_asked(); },
                 .before_call = [this] { ranks_.end_if_asked(); }});
          },
          advice_on_measuring(batch_.micro, run_.config));
    });
    if (ranks_.world() != nullptr) {
      agree_on_cost(cost, *ranks_.world());
    }
    return cost;
  }

  /// Makes all plans that the run will need; of those without room the refusal of the largest.
  std::optional<Refusal> make_plans(PlanBook& plans) const {
    std::optional<Refusal> refusal;
    const auto make = [&](std::optional<int> micro_batches) {
      try {
        micro_batches ? void(plans.plan(*micro_batches)) : void(plans.evaluation());
      } catch (const InfeasibleBudget& error) {
        if (!refusal || error.least() > refusal->error.least()) {
          refusal.emplace(Refusal{error, micro_batches});
        }
      }
    };
    for (const int size : step_sizes(run_.batches)) {
      make(size);
    }
    if (run_.evaluates) {
      make(std::nullopt);
    }
    return refusal;
  }

  /// Plans in each way of sharing states that is left open, and takes the one with the fastest step.
  Candidate plan_with(const ModelCost& cost, const DeviceBudget& budget) {
    const auto long_work = ranks_.long_work("planning a step");
    std::optional<Candidate> best;
    std::optional<std::pair<Refusal, PlanBook>> refused; // the way that needs least
    const auto consider = [&](const RunConfig::Parallel& parallel, bool states_fit) {
      RunConfig config = run_.config;
      *config.mutable_parallel() = parallel;
      const Mesh mesh = resolve_mesh(ranks_.size(), mesh_request(config));
      PlanBook plans(config, cost, mesh, links_, budget, batch_.micro);
      if (plans.states_fit() != states_fit ||
          (best && plans.least_seconds(micro_batches()) >= best->seconds)) {
        return false;
      }
      if (auto refusal = make_plans(plans)) {
        if (!refused || refusal->error.least() < refused->first.error.least()) {
          refused.emplace(std::move(*refusal), std::move(plans));
        }
        return false;
      }
      const double seconds = plans.report(micro_batches()).seconds;
      // Nothing runs again, and updates are shared: those after it only exchange more.
      const bool enough = plans.choice(micro_batches()).segments.empty() && parallel.zero() > 0;
      if (!best || seconds < best->seconds) {
        best.emplace(Candidate{{batch_, parallel, mesh, std::move(plans)}, seconds});
      }
      return enough;
    };
    ranks_.together([&] {
      name_shortages(run_.memory, "planning a step", [&] {
        const auto candidates = parallel_candidates(run_.config, ranks_.size());
        for (const bool states_fit : {true, false}) { // the latter are searched for a refusal alone
          for (const RunConfig::Parallel& parallel : candidates) {
            ranks_.end_if_asked();
            if (consider(parallel, states_fit)) {
              break;
            }
          }
          if (best) {
            return;
          }
        }
        const auto& [refusal, plans] = *refused;
        throw refusal.micro_batches ? refusal.error.with(plans.advice(*refusal.micro_batches))
                                    : refusal.error;
      });
    });
    return std::move(*best);
  }

  const PlannedRun& run_;
  Ranks& ranks_;
  BatchSizes batch_;
  const LinkCosts& links_;
};

} // namespace

ChosenPlans choose_plans(const PlannedRun& run, BatchSizes batch, const LinkCosts& links) {
  return PlanChoice(run, batch, links).choose();
}

std::vector<int> step_sizes(const StepBatches& batches) {
  const auto size_of = [&](int64_t step) {
    return static_cast<int>(batches.micro_batch_sizes(step).size());
  };
  return {size_of(0), size_of(batches.steps_per_epoch() - 1)};
}

void require_memory(int64_t bytes, std::string_view purpose) {
  const int64_t available = Device::cpu().available_memory();
  if (bytes > available) {
    throw EnvironmentError(
        "out of memory: {} takes {}, but {} are available; make the model or the micro-batch "
        "smaller",
        purpose,
        format_bytes(bytes),
        format_bytes(available));
  }
}

} // namespace palimpsest
