// The rules of single kinds of operations.

#include <palimpsest/core/plan/simulation.h>

#include <fmt/format.h>

#include <algorithm>

namespace palimpsest {

void Simulation::check_rules(Rank& rank) {
  switch (rank.op().kind) {
    case OpKind::kForward:
      return check_forward(rank);
    case OpKind::kBackward:
      return check_backward(rank);
    case OpKind::kGather:
      if (rank.agreed != kNoEvent || !job_.placement().shards_parameters()) {
        fail(rank, "GATHER is for sharded parameters, before AGREE");
      }
      return;
    case OpKind::kRelease:
      if (!job_.placement().shards_parameters()) {
        fail(rank, "RELEASE frees gathered parameters only");
      }
      return;
    case OpKind::kReduce:
      return check_reduce(rank);
    case OpKind::kDrop:
      return check_drop(rank);
    case OpKind::kAgree:
      return check_agree(rank);
    case OpKind::kUpdate:
      return check_update(rank);
    case OpKind::kCommit:
      return check_commit(rank);
    default:
      return;
  }
}

void Simulation::check_compute(const Rank& rank) const {
  if (job_.home(rank.op().block) != rank.compiled->pipeline_rank()) {
    fail(rank, "not this rank's block");
  }
  if (rank.agreed != kNoEvent) {
    fail(rank, "computes after AGREE");
  }
}

void Simulation::check_forward(Rank& rank) {
  const Op& op = rank.op();
  const bool terminal = op.block == job_.model().terminal();
  check_compute(rank);
  const bool taped = op.tape != TapeMode::kNone;
  if (taped && !job_.differentiable(op.block)) {
    fail(rank, "a block before the first trainable unit needs no tape");
  }
  const bool yields_loss = terminal && (taped || !job_.training());
  const auto mb = static_cast<size_t>(op.mb);
  if (terminal && (!op.yields.empty() || (yields_loss && rank.losses[mb]))) {
    fail(rank, "the terminal block runs once per micro-batch and carries nothing on");
  }
  if (!terminal && !taped && op.yields.empty()) {
    fail(rank, "leaves nothing");
  }
  if (yields_loss) {
    rank.losses[mb] = true;
  }
  count_flops(rank);
}

void Simulation::check_backward(Rank& rank) {
  const Op& op = rank.op();
  check_compute(rank);
  if (op.block == job_.model().terminal() || !job_.differentiable(op.block)) {
    fail(rank, "this block has no BACKWARD");
  }
  if (op.part != BackwardPart::kBoth && job_.trainable(op.block).empty()) {
    fail(rank, "only a block with trainable units splits its BACKWARD");
  }
  if (op.part != BackwardPart::kWeight) {
    for (const auto& [place, use] : rank.compiled->uses(rank.next)) {
      const Slot& slot = rank.compiled->places()[static_cast<size_t>(place)].slot;
      if (slot.kind != SlotKind::kGrad || use != Use::kReads) {
        continue;
      }
      for (const int reader : job_.readers({slot.owner, slot.index})) {
        if (!rank.copies[static_cast<size_t>(place)].content.contains(
                static_cast<size_t>(reader))) {
          fail(rank, fmt::format("{} lacks the contribution of block {}", to_text(slot), reader));
        }
      }
    }
  }
  count_flops(rank);
}

void Simulation::check_drop(const Rank& rank) const {
  const Op& op = rank.op();
  if (op.slot.kind == SlotKind::kParam && job_.placement().shards_parameters()) {
    fail(rank, "gathered parameters go by RELEASE");
  }
  const bool state = job_.is_persistent({op.slot, op.tier}, rank.compiled->pipeline_rank());
  if (op.slot.kind == SlotKind::kParam || (state && rank.agreed == kNoEvent)) {
    fail(rank, "states stay at home until AGREE, whole parameters for ever");
  }
}

size_t Simulation::contribution(int unit, int block, int data, int mb) const {
  const auto& users = job_.users(unit);
  const auto batches = static_cast<size_t>(job_.micro_batches());
  // each rank's part begins at a word, so that its window is small
  const size_t stride = (users.size() * batches + 63) / 64 * 64;
  const auto position = std::lower_bound(users.begin(), users.end(), block) - users.begin();
  return static_cast<size_t>(data) * stride + static_cast<size_t>(position) * batches +
      static_cast<size_t>(mb);
}

/// All (block, simulated data rank, micro-batch) that must be in the gradient at AGREE. A set holds
/// no others, and none twice.
bool Simulation::complete(const Contributions& content, int unit) const {
  const size_t expected = job_.users(unit).size() * static_cast<size_t>(job_.micro_batches()) *
      static_cast<size_t>(job_.mesh().data() / peers_);
  return content.count() == expected;
}

void Simulation::check_reduce(Rank& rank) {
  const Op& op = rank.op();
  if (rank.agreed != kNoEvent || !job_.has_axis(op.unit, op.axis)) {
    fail(rank, "after AGREE, or not an axis of this unit");
  }
  if (job_.reproducible() && op.mbs.end - op.mbs.begin > 1) {
    fail(rank, "reproducible sums take one micro-batch at a time");
  }
  const bool shard = op.axis == ReduceAxis::kShard;
  const SlotKind kind = shard ? SlotKind::kGradBuffer : job_.gradient(op.unit).kind;
  const Contributions& content = copy_of(rank, kind, op.unit).content;
  for (const int block : job_.users(op.unit, rank.compiled->pipeline_rank())) {
    for (int mb = 0; mb < job_.micro_batches(); ++mb) {
      const bool wanted = op.mbs.begin <= mb && mb < op.mbs.end;
      if (content.contains(contribution(op.unit, block, rank.data, mb)) != wanted) {
        fail(rank, "the gradient does not hold exactly these micro-batches");
      }
    }
  }
}

void Simulation::check_agree(Rank& rank) {
  if (rank.agreed != kNoEvent) {
    fail(rank, "a second AGREE");
  }
  for (const int unit : job_.trained_units(rank.compiled->pipeline_rank())) {
    bool held = false;
    for (const TierId tier : {TierId::kDevice, TierId::kHost, TierId::kDisk}) {
      const int place = rank.compiled->unit_place(job_.gradient(unit).kind, unit, tier);
      if (place >= 0 && rank.copies[static_cast<size_t>(place)].live) {
        held = complete(rank.copies[static_cast<size_t>(place)].content, unit);
        break;
      }
    }
    if (!held) {
      fail(rank, fmt::format("the gradient of unit {} is not complete and reduced", unit));
    }
  }
}

void Simulation::check_update(Rank& rank) {
  const int unit = rank.op().unit;
  Copy& weight = copy_of(rank, job_.weight(unit).kind, unit);
  Copy& state = copy_of(rank, SlotKind::kOptimizerState, unit);
  const Copy& gradient = copy_of(rank, job_.gradient(unit).kind, unit);
  if (!complete(gradient.content, unit) || weight.age != Age::kOld || state.age != Age::kOld) {
    fail(rank, "needs the whole gradient and the states from before the step");
  }
  weight.age = job_.placement().publishes() ? Age::kPartial : Age::kNew;
  state.age = Age::kNew;
}

void Simulation::check_commit(Rank& rank) {
  if (rank.committed || rank.compiled->last_change() >= static_cast<int>(rank.next)) {
    fail(rank, "comes once, after every UPDATE and PUBLISH");
  }
  rank.committed = true;
}

void Simulation::check_budget(const Rank& rank) const {
  if (budget_.empty()) {
    return;
  }
  for (const TierId tier : {TierId::kDevice, TierId::kHost, TierId::kDisk}) {
    const int64_t allowed = budget_[static_cast<size_t>(rank.number)][tier];
    if (rank.report.peak[tier] > allowed) {
      fail(
          rank,
          fmt::format(
              "over budget on the {}: {} bytes of {}",
              to_text(tier),
              rank.report.peak[tier],
              allowed));
    }
  }
}

void Simulation::check_end(const Rank& rank) const {
  const int pipeline_rank = rank.compiled->pipeline_rank();
  const auto& persistent = job_.persistent(pipeline_rank);
  for (size_t number = 0; number < rank.copies.size(); ++number) {
    const Place& place = rank.compiled->places()[number];
    const Copy& copy = rank.copies[number];
    const bool state = number < persistent.size();
    if (copy.live != state) {
      fail(
          rank,
          fmt::format(
              "left over or missing at the end: {} on the {}",
              to_text(place.slot),
              to_text(place.tier)));
    }
    const bool changes = state && persistent[number].changes && job_.training();
    if (state && copy.age != (changes ? Age::kNew : Age::kOld)) {
      fail(
          rank,
          fmt::format(
              "{} ends {}", to_text(place.slot), changes ? "without its update" : "changed"));
    }
  }
  const bool last = job_.home(job_.model().terminal()) == pipeline_rank;
  if (std::find(rank.losses.begin(), rank.losses.end(), !last) != rank.losses.end() ||
      rank.committed != job_.training()) {
    fail(rank, "the loss of a micro-batch or COMMIT is missing");
  }
  const auto unmatched = [&](int event) {
    return event != kNoEvent && !events_[static_cast<size_t>(event)].done;
  };
  const bool unpaired = std::any_of(channels_.begin(), channels_.end(), [](const auto& entry) {
    return entry.second.sends.size() != entry.second.receives.size();
  });
  if (unpaired || std::any_of(rank.lanes.begin(), rank.lanes.end(), unmatched)) {
    fail(rank, "a transfer or a collective has no counterpart");
  }
}

} // namespace palimpsest
