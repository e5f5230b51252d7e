#include <palimpsest/tests/support/plan/mutations.h>

#include <algorithm>

namespace palimpsest::testing {
namespace {

struct Change {
  std::string kind;
  Op op;
};

/// Every change of one field of an operation to another legal value.
std::vector<Change> changes(const Op& op, const Job& job) {
  std::vector<Change> found;
  const auto change = [&](const char* kind, const auto& edit) {
    Op changed = op;
    edit(changed);
    if (changed != op) {
      found.push_back({kind, changed});
    }
  };
  const int blocks = static_cast<int>(job.model().blocks.size());
  const int units = static_cast<int>(job.model().units.size());
  const bool per_step =
      has_slot(op.kind) && !per_micro_batch(op.slot.kind) && op.slot.kind != SlotKind::kParam;
  for (int mb = 0; mb < job.micro_batches(); ++mb) {
    change("micro-batch", [&](Op& changed) { changed.mb = op.mb >= 0 ? mb : op.mb; });
    change("micro-batch", [&](Op& changed) {
      changed.slot.mb = has_slot(op.kind) && op.slot.mb >= 0 ? mb : op.slot.mb;
    });
  }
  if (op.kind == OpKind::kReduce) {
    for (int end = 1; end <= job.micro_batches(); ++end) {
      for (int begin = 0; begin < end; ++begin) {
        change("micro-batch", [&](Op& changed) { changed.mbs = {begin, end}; });
      }
    }
    for (const auto axis : {ReduceAxis::kShard, ReduceAxis::kReplicate, ReduceAxis::kTie}) {
      change("axis", [&](Op& changed) { changed.axis = axis; });
    }
  }
  for (int unit = 0; unit < units; ++unit) {
    change("unit", [&](Op& changed) { changed.unit = op.unit >= 0 ? unit : op.unit; });
    change("unit", [&](Op& changed) { changed.slot.owner = per_step ? unit : op.slot.owner; });
  }
  for (int peer = 0; peer < job.mesh().pipeline && is_transfer(op.kind); ++peer) {
    change("peer", [&](Op& changed) { changed.peer = peer; });
  }
  if (op.kind == OpKind::kStash || op.kind == OpKind::kFetch || op.kind == OpKind::kDrop) {
    for (const auto tier : {TierId::kDevice, TierId::kHost, TierId::kDisk}) {
      change("tier", [&](Op& changed) { changed.tier = tier; });
    }
  }
  if (op.kind == OpKind::kForward) {
    for (const auto tape : {TapeMode::kNone, TapeMode::kLean, TapeMode::kFull}) {
      change("tape", [&](Op& changed) { changed.tape = tape; });
    }
    const size_t width = job.model().blocks[static_cast<size_t>(op.block)].value_bytes.size();
    for (unsigned chosen = 0; chosen < 1U << width; ++chosen) {
      change("yield", [&](Op& changed) {
        changed.yields = {};
        for (int index = 0; index < static_cast<int>(width); ++index) {
          if ((chosen >> index & 1U) != 0) {
            changed.yields.insert(index);
          }
        }
      });
    }
  }
  if (op.kind == OpKind::kBackward) {
    for (const auto part : {BackwardPart::kBoth, BackwardPart::kInput, BackwardPart::kWeight}) {
      change("part", [&](Op& changed) { changed.part = part; });
    }
  }
  for (int block = 0; block < blocks && is_compute(op.kind); ++block) {
    change("block", [&](Op& changed) { changed.block = block; });
  }
  return found;
}

} // namespace

std::vector<Mutant> mutations(const StepPlan& plan, const Job& job, std::mt19937_64& draw) {
  std::vector<Mutant> mutants;
  for (size_t index = 0; index < plan.size(); ++index) {
    const auto at = static_cast<std::ptrdiff_t>(index);
    const auto mutate = [&](const std::string& kind, const auto& edit) {
      mutants.push_back({kind, plan});
      edit(mutants.back().plan);
    };
    mutate("delete", [&](StepPlan& ops) { ops.erase(ops.begin() + at); });
    mutate("duplicate", [&](StepPlan& ops) { ops.insert(ops.begin() + at, plan[index]); });
    if (index > 0 && plan[index - 1] != plan[index]) {
      mutate("swap", [&](StepPlan& ops) { std::swap(ops[index - 1], ops[index]); });
    }
    std::vector<Change> options = changes(plan[index], job);
    std::shuffle(options.begin(), options.end(), draw);
    options.resize(std::min<size_t>(options.size(), 3));
    for (const Change& option : options) {
      mutate(option.kind, [&](StepPlan& ops) { ops[index] = option.op; });
    }
  }
  return mutants;
}

} // namespace palimpsest::testing
