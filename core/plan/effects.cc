#include <palimpsest/core/plan/effects.h>

namespace palimpsest {
namespace {

/// Collects what one operation does to places.
class Table {
 public:
  Table(const Op& op, const Job& job, std::vector<Effect>& out) : op_(op), job_(job), out_(out) {}

  void forward() {
    const BlockCost& block = this->block();
    read_values(block.reads);
    units(SlotKind::kParam, block.units, Use::kReads);
    if (op_.block == job_.model().terminal()) {
      if (op_.tape != TapeMode::kNone) {
        add_gradients(true, true);
      }
      return;
    }
    for (int index = 0; index < static_cast<int>(block.value_bytes.size()); ++index) {
      if (op_.yields.contains(index)) {
        value(SlotKind::kValue, {op_.block, index}, Use::kCreates);
      }
    }
    if (op_.tape != TapeMode::kNone) {
      own(SlotKind::kTape, Use::kCreates);
    }
  }

  void backward() {
    if (op_.part == BackwardPart::kWeight) {
      add_gradients(false, true);
      own(SlotKind::kWeightJobs, Use::kSpends);
      return;
    }
    const BlockCost& block = this->block();
    read_values(block.saves ? *block.saves : block.reads);
    for (const int index : job_.read_values(op_.block)) {
      value(SlotKind::kGrad, {op_.block, index}, Use::kReads);
    }
    if (block.backward_reads_units) {
      units(SlotKind::kParam, block.units, Use::kReads);
    }
    if (op_.part == BackwardPart::kInput) {
      own(SlotKind::kWeightJobs, Use::kCreates);
    }
    add_gradients(true, op_.part == BackwardPart::kBoth);
    own(SlotKind::kTape, Use::kSpends);
  }

  void unit(SlotKind kind, Use use) {
    add({.kind = kind, .owner = op_.unit}, use);
  }
  void add(const Slot& slot, Use use, TierId tier = TierId::kDevice) {
    out_.push_back({{slot, tier}, use});
  }

 private:
  const BlockCost& block() const {
    return job_.model().blocks[static_cast<size_t>(op_.block)];
  }
  void value(SlotKind kind, ValueRef ref, Use use) {
    add({.kind = kind, .owner = ref.producer, .index = ref.index, .mb = op_.mb}, use);
  }
  void own(SlotKind kind, Use use) {
    add({.kind = kind, .owner = op_.block, .mb = op_.mb}, use);
  }
  void read_values(const std::vector<ValueRef>& refs) {
    for (const ValueRef ref : refs) {
      value(SlotKind::kValue, ref, Use::kReads);
    }
  }
  void units(SlotKind kind, const std::vector<int>& owners, Use use) {
    for (const int owner : owners) {
      add({.kind = kind, .owner = owner}, use);
    }
  }
  void add_gradients(bool of_inputs, bool of_units) {
    if (of_inputs) {
      for (const ValueRef ref : job_.graded_reads(op_.block)) {
        value(SlotKind::kGrad, ref, Use::kAdds);
      }
    }
    if (of_units) {
      units(SlotKind::kGradBuffer, job_.trainable(op_.block), Use::kAdds);
    }
  }

  const Op& op_;
  const Job& job_;
  std::vector<Effect>& out_;
};

void require(bool holds, const Op& op, std::string_view what) {
  if (!holds) {
    throw PlanError(to_text(op) + ": no such " + std::string(what));
  }
}

void check_operands(const Op& op, const Job& job) {
  const auto within = [](int index, size_t count) {
    return index >= 0 && static_cast<size_t>(index) < count;
  };
  const bool per_unit = op.kind == OpKind::kGather || op.kind == OpKind::kRelease ||
      op.kind == OpKind::kReduce || op.kind == OpKind::kUpdate || op.kind == OpKind::kPublish;
  if (per_unit) {
    require(within(op.unit, job.model().units.size()), op, "unit");
  }
  if (op.kind == OpKind::kReduce) {
    const auto [begin, end] = op.mbs;
    require(0 <= begin && begin < end && end <= job.micro_batches(), op, "range of micro-batches");
  }
  if (is_compute(op.kind) || op.kind == OpKind::kLoad) {
    require(within(op.mb, static_cast<size_t>(job.micro_batches())), op, "micro-batch");
  }
  if (is_compute(op.kind)) {
    require(within(op.block, job.model().blocks.size()), op, "block");
    const size_t values = job.model().blocks[static_cast<size_t>(op.block)].value_bytes.size();
    require(values == ValueSet::kLimit || op.yields.bits() >> values == 0, op, "value");
  }
  if (has_slot(op.kind)) {
    require(job.slot_id(op.slot) >= 0, op, "slot");
  }
  if (is_transfer(op.kind)) {
    require(within(op.peer, static_cast<size_t>(job.mesh().pipeline)), op, "peer");
    require(
        op.slot.kind <= SlotKind::kGrad, op, "transfer: only values and their gradients are sent");
  }
}

} // namespace

void effects(const Op& op, const Job& job, std::vector<Effect>& out) {
  out.clear();
  check_operands(op, job);
  Table table(op, job, out);
  switch (op.kind) {
    case OpKind::kLoad:
      return table.add({.kind = SlotKind::kValue, .owner = kLoader, .mb = op.mb}, Use::kCreates);
    case OpKind::kForward:
      return table.forward();
    case OpKind::kBackward:
      return table.backward();
    case OpKind::kGather:
      table.unit(SlotKind::kParamShard, Use::kReads);
      return table.unit(SlotKind::kParam, Use::kCreates);
    case OpKind::kRelease:
      return table.unit(SlotKind::kParam, Use::kFrees);
    case OpKind::kReduce:
      if (op.axis != ReduceAxis::kShard) {
        return table.add(job.gradient(op.unit), Use::kChanges);
      }
      table.unit(SlotKind::kGradShard, Use::kAdds);
      return table.unit(SlotKind::kGradBuffer, Use::kSpends);
    case OpKind::kStash:
      table.add(op.slot, Use::kReads);
      return table.add(op.slot, Use::kCreates, op.tier);
    case OpKind::kFetch:
      table.add(op.slot, Use::kReads, op.tier);
      return table.add(op.slot, Use::kCreates);
    case OpKind::kSend:
      return table.add(op.slot, Use::kReads);
    case OpKind::kRecv: // partial gradients of a value arrive from every rank that reads it
      return table.add(op.slot, op.slot.kind == SlotKind::kGrad ? Use::kAdds : Use::kCreates);
    case OpKind::kDrop:
      return table.add(op.slot, Use::kFrees, op.tier);
    case OpKind::kUpdate:
      table.add(job.weight(op.unit), Use::kChanges);
      table.unit(SlotKind::kOptimizerState, Use::kChanges);
      return table.add(job.gradient(op.unit), Use::kSpends);
    case OpKind::kPublish:
      return table.unit(SlotKind::kParam, Use::kChanges);
    case OpKind::kAgree:
    case OpKind::kCommit:
      return;
  }
}

std::vector<Effect> effects(const Op& op, const Job& job) {
  std::vector<Effect> out;
  effects(op, job, out);
  return out;
}

} // namespace palimpsest
