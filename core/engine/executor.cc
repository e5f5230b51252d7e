#include <palimpsest/core/engine/executor.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/relief.h>
#include <palimpsest/core/engine/block_ops.h>
#include <palimpsest/core/engine/slot_table.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <new>
#include <optional>
#include <utility>

namespace palimpsest {
namespace {

/// Operations that no other rank takes part in, and whose result only this rank's blocks use.
bool is_own_work(const Op& op) {
  const bool copies = op.kind == OpKind::kStash || op.kind == OpKind::kFetch;
  return op.kind == OpKind::kLoad || is_compute(op.kind) ||
      (copies && per_micro_batch(op.slot.kind));
}

/// One run of one plan.
class StepRun {
 public:
  StepRun(
      Chain& chain,
      const Executor::Services& services,
      const Job& job,
      const StepInputs& inputs,
      int pipeline_rank)
      : chain_(chain), services_(services), job_(job), inputs_(inputs),
        pipeline_rank_(pipeline_rank), table_(services.params),
        blocks_(chain, services.memory, job, inputs, table_) {}
  StepRun(const StepRun&) = delete;
  StepRun& operator=(const StepRun&) = delete;
  ~StepRun() {
    if (!committed_) {
      commit(false);
    }
  }

  StepOutcome run(const StepPlan& plan) {
    services_.memory.take_refusal(); // of an earlier step
    for (size_t index = 0; index < plan.size(); ++index) {
      for (Observer* observer : services_.observers) {
        observer->op_begin(index, plan[index]);
      }
      const Op& op = plan[index];
      // A plan counts a collective's buffers where it is issued; a late peer holds them longer.
      if (!attempt(op) && !(is_collective(op.kind) && table_.finish() && attempt(op))) {
        drain(op);
      }
      table_.poll();
      for (Observer* observer : services_.observers) {
        observer->op_end(index, plan[index]);
      }
    }
    outcome_.exhausted = outcome_.exhausted || outcome_.shortage.has_value();
    for (const double loss : agreed_ ? losses_ : blocks_.losses()) {
      outcome_.loss_sum += loss;
    }
    outcome_.forwards = blocks_.forwards();
    outcome_.backwards = blocks_.backwards();
    return outcome_;
  }

 private:
  /// False where memory ran out.
  bool attempt(const Op& op) {
    try {
      execute(op);
      return true;
    } catch (const c10::OutOfMemoryError&) {
      return false;
    } catch (const std::bad_alloc&) {
      return false;
    }
  }

  void execute(const Op& op) {
    effects(op, job_, effects_);
    table_.prepare(effects_);
    if (is_compute(op.kind)) {
      adopt_openmp_workers(services_.memory); // a library may have replaced some since
    }
    if (!outcome_.shortage || !is_own_work(op)) {
      std::optional<ScopedRelief> relief;
      if (is_compute(op.kind)) { // a collective may not wait for another one while it is issued
        relief.emplace([this] { return table_.finish(); });
      }
      perform(op);
    }
  }

  /// Memory ran out in `op`. The other ranks wait for this one's collectives: from here on these
  /// alone are issued, in the room that the step's values and tapes leave.
  void drain(const Op& op) {
    const bool again = outcome_.shortage.has_value();
    outcome_.shortage = MemoryShortage{
        .doing = "in " + describe(op, job_), .refused = latest_refusal(services_.memory)};
    if (again || agreed_ || services_.peers != nullptr) {
      throw EnvironmentError("{}", describe(*outcome_.shortage));
    }
    table_.abandon();
    execute(op);
  }

  void perform(const Op& op) {
    ParamStore& params = services_.params;
    switch (op.kind) {
      case OpKind::kLoad:
        return table_.keep({SlotKind::kValue, kLoader, 0, op.mb}, batch(op.mb).inputs);
      case OpKind::kForward:
        return blocks_.forward(op);
      case OpKind::kBackward:
        return blocks_.backward(op);
      case OpKind::kGather:
        return issued(params.gather(op.unit));
      case OpKind::kRelease:
        return params.release(op.unit);
      case OpKind::kReduce:
        return issued(params.reduce(op.unit, op.mbs, op.axis));
      case OpKind::kStash:
        return issued(service(services_.slots).stash(op.slot, op.tier, table_.tensors(op.slot)));
      case OpKind::kFetch:
        return issued(service(services_.slots).fetch(op.slot, op.tier, table_.tensors(op.slot)));
      case OpKind::kSend:
        return issued(service(services_.peers).send(op.slot, op.peer, table_.tensor(op.slot)));
      case OpKind::kRecv:
        return issued(service(services_.peers).receive(op.slot, op.peer, table_.receive(op.slot)));
      case OpKind::kDrop:
        return table_.drop(op.slot, op.tier, services_.slots);
      case OpKind::kAgree:
        return agree();
      case OpKind::kUpdate:
        return update(op.unit);
      case OpKind::kPublish:
        return issued(params.publish(op.unit));
      case OpKind::kCommit:
        return commit(outcome_.finite);
    }
    check(false, "an operation of no known kind");
  }

  void agree() {
    Agreement mine{
        .finite = true,
        .exhausted = outcome_.shortage.has_value(),
        .norm_parts = {},
        .losses = blocks_.losses()};
    for (const int unit : job_.trained_units(pipeline_rank_)) {
      table_.await({job_.gradient(unit), TierId::kDevice}); // a REDUCE may still write it
      const auto parts = services_.norm.measure(services_.params.shard(unit).gradient);
      mine.norm_parts.insert(mine.norm_parts.end(), parts.begin(), parts.end());
    }
    const auto finite = [](double number) { return std::isfinite(number); };
    mine.finite =
        std::ranges::all_of(mine.norm_parts, finite) && std::ranges::all_of(mine.losses, finite);
    const Agreement all =
        services_.agreer != nullptr ? services_.agreer->agree(std::move(mine)) : std::move(mine);
    losses_ = all.losses;
    // A norm is scaled back as its gradients would be.
    outcome_.grad_norm = services_.norm.fold(all.norm_parts) / inputs_.gradient_scale;
    outcome_.exhausted = all.exhausted;
    outcome_.finite = all.finite && !all.exhausted && std::isfinite(outcome_.grad_norm);
    agreed_ = true;
  }

  void update(int unit) {
    if (!outcome_.finite) {
      return;
    }
    const ScopedCategory scratch(services_.memory, Category::kWorkspace);
    const double factor = inputs_.clip ? inputs_.clip(outcome_.grad_norm) : 1.0;
    services_.optimizer.step(
        services_.params.shard(unit),
        {.learning_rate = inputs_.learning_rate,
         .gradient_factor = factor / inputs_.gradient_scale,
         .step = inputs_.updates,
         .seed = inputs_.seed});
  }

  void commit(bool keep) {
    committed_ = true;
    for (const ChainBlock& entry : chain_.blocks) {
      entry.block->commit(keep);
    }
    chain_.terminal->commit(keep);
  }

  // ---- operands
  void issued(Ticket ticket) {
    table_.in_flight(std::move(ticket), effects_);
  }

  const MicroBatch& batch(int mb) const {
    return inputs_.batches[static_cast<size_t>(mb)];
  }

  template <typename Service>
  static Service& service(Service* found) {
    check(found != nullptr, "the plan needs a service that this run does not have");
    return *found;
  }

  Chain& chain_;
  const Executor::Services& services_;
  const Job& job_;
  const StepInputs& inputs_;
  int pipeline_rank_;
  StepOutcome outcome_;
  std::vector<double> losses_; // all ranks', as agreed
  std::vector<Effect> effects_; // of the current operation
  bool agreed_ = false;
  bool committed_ = false;
  SlotTable table_;
  BlockOps blocks_;
};

} // namespace

Executor::Executor(Chain& chain, Services services)
    : chain_(chain), services_(std::move(services)) {}

StepOutcome Executor::run(
    const StepPlan& plan,
    const Job& job,
    const StepInputs& inputs,
    int pipeline_rank) {
  check(
      static_cast<int>(inputs.batches.size()) == job.micro_batches(),
      "{} micro-batches for a plan of {}",
      inputs.batches.size(),
      job.micro_batches());
  return StepRun(chain_, services_, job, inputs, pipeline_rank).run(plan);
}

} // namespace palimpsest
