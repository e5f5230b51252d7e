#include <palimpsest/core/engine/executor.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/engine/slot_table.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>

namespace palimpsest {
namespace {

Slot value_slot(const ValueRef& ref, int mb) {
  return {SlotKind::kValue, ref.producer, ref.index, mb};
}

Slot grad_slot(const ValueRef& ref, int mb) {
  return {SlotKind::kGrad, ref.producer, ref.index, mb};
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
        pipeline_rank_(pipeline_rank), losses_(inputs.batches.size()), table_(services.params) {}
  StepRun(const StepRun&) = delete;
  StepRun& operator=(const StepRun&) = delete;
  ~StepRun() {
    if (!committed_) {
      commit(false);
    }
  }

  StepOutcome run(const StepPlan& plan) {
    for (size_t index = 0; index < plan.size(); ++index) {
      for (Observer* observer : services_.observers) {
        observer->op_begin(index, plan[index]);
      }
      effects(plan[index], job_, effects_);
      table_.prepare(effects_);
      if (is_compute(plan[index].kind)) {
        adopt_openmp_workers(services_.memory); // a library may have replaced some since
      }
      perform(plan[index]);
      table_.poll();
      for (Observer* observer : services_.observers) {
        observer->op_end(index, plan[index]);
      }
    }
    for (const double loss : losses_) {
      outcome_.loss_sum += loss;
    }
    return outcome_;
  }

 private:
  void perform(const Op& op) {
    ParamStore& params = services_.params;
    switch (op.kind) {
      case OpKind::kLoad:
        return table_.keep(value_slot({kLoader, 0}, op.mb), batch(op.mb).inputs);
      case OpKind::kForward:
        return op.block == chain_.terminal_index() ? forward_terminal(op) : forward(op);
      case OpKind::kBackward:
        return backward(op);
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

  void forward(const Op& op) {
    const ScopedCategory scratch(services_.memory, Category::kWorkspace);
    const ChainBlock& entry = chain_.blocks[static_cast<size_t>(op.block)];
    ForwardRequest request{.tape = op.tape, .yields = {}, .graded_inputs = graded(entry.reads)};
    for (int index = 0; index < entry.values; ++index) {
      if (op.yields.contains(index)) {
        request.yields.push_back(index);
      }
    }
    ForwardResult result = entry.block->forward(values(entry.reads, op.mb), request, context(op));
    for (size_t number = 0; number < request.yields.size(); ++number) {
      table_.keep(value_slot({op.block, request.yields[number]}, op.mb), result.values[number]);
    }
    if (result.tape != nullptr) {
      table_.keep({SlotKind::kTape, op.block, 0, op.mb}, std::move(result.tape));
    }
    ++outcome_.forwards;
  }

  void forward_terminal(const Op& op) {
    const ScopedCategory scratch(services_.memory, Category::kWorkspace);
    const std::vector<ValueRef>& reads = chain_.terminal_reads;
    const LossResult result =
        chain_.terminal->forward(values(reads, op.mb), op.tape != TapeMode::kNone, context(op));
    losses_[static_cast<size_t>(op.mb)] = result.loss_sum;
    add_gradients(reads, result.grad_inputs, op.mb);
    ++outcome_.forwards;
  }

  void backward(const Op& op) {
    const ScopedCategory scratch(services_.memory, Category::kWorkspace);
    const Slot jobs{SlotKind::kWeightJobs, op.block, 0, op.mb};
    if (op.part == BackwardPart::kWeight) {
      table_.tape(jobs).backward({}, {}, op.part, context(op));
      return;
    }
    const ChainBlock& entry = chain_.blocks[static_cast<size_t>(op.block)];
    Tensors saved;
    for (const ValueRef& read : entry.reads) {
      const bool needed = std::ranges::find(entry.saves, read) != entry.saves.end();
      saved.push_back(needed ? table_.tensor(value_slot(read, op.mb)) : at::Tensor());
    }
    Tensors grads(static_cast<size_t>(entry.values));
    for (const int index : job_.read_values(op.block)) {
      grads[static_cast<size_t>(index)] = table_.tensor(grad_slot({op.block, index}, op.mb));
    }
    std::unique_ptr<Tape> tape = table_.take_tape({SlotKind::kTape, op.block, 0, op.mb});
    add_gradients(entry.reads, tape->backward(saved, grads, op.part, context(op)), op.mb);
    if (op.part == BackwardPart::kInput) {
      table_.keep(jobs, std::move(tape));
    }
    ++outcome_.backwards;
  }

  void agree() {
    Agreement mine{.finite = true, .norm_parts = {}, .losses = losses_};
    for (const int unit : job_.trained_units(pipeline_rank_)) {
      table_.await({job_.gradient(unit), TierId::kDevice}); // a REDUCE may still write it
      const auto parts = services_.norm.measure(services_.params.shard(unit).gradient);
      mine.norm_parts.insert(mine.norm_parts.end(), parts.begin(), parts.end());
    }
    const auto finite = [](double number) { return std::isfinite(number); };
    mine.finite =
        std::ranges::all_of(mine.norm_parts, finite) && std::ranges::all_of(losses_, finite);
    const Agreement all =
        services_.agreer != nullptr ? services_.agreer->agree(std::move(mine)) : std::move(mine);
    losses_ = all.losses;
    outcome_.grad_norm = services_.norm.fold(all.norm_parts);
    outcome_.finite = all.finite && std::isfinite(outcome_.grad_norm);
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
         .gradient_factor = factor,
         .step = inputs_.updates});
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

  Tensors values(const std::vector<ValueRef>& reads, int mb) {
    Tensors found;
    for (const ValueRef& read : reads) {
      found.push_back(table_.tensor(value_slot(read, mb)));
    }
    return found;
  }

  std::vector<bool> graded(const std::vector<ValueRef>& reads) const {
    std::vector<bool> needed;
    for (const ValueRef& read : reads) {
      needed.push_back(read.producer != kLoader && job_.differentiable(read.producer));
    }
    return needed;
  }

  void add_gradients(const std::vector<ValueRef>& reads, const Tensors& grads, int mb) {
    const std::vector<bool> needed = graded(reads);
    for (size_t number = 0; number < grads.size(); ++number) {
      for (size_t other = 0; other < number; ++other) {
        const bool both = grads[number].defined() && grads[other].defined();
        check(
            !both || !grads[number].is_alias_of(grads[other]),
            "a block returned one tensor as the gradient of two inputs");
      }
      if (needed[number]) {
        table_.add(grad_slot(reads[number], mb), grads[number]);
      }
    }
  }

  const MicroBatch& batch(int mb) const {
    return inputs_.batches[static_cast<size_t>(mb)];
  }

  BlockContext context(const Op& op) const {
    return {
        .batch = &batch(op.mb),
        .seed = inputs_.seed,
        .step = inputs_.step,
        .micro_batch = op.mb,
        .training = job_.training(),
        .loss_scale = inputs_.loss_scale};
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
  std::vector<double> losses_; // by micro-batch
  std::vector<Effect> effects_; // of the current operation
  bool committed_ = false;
  SlotTable table_;
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
