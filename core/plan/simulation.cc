#include <palimpsest/core/plan/simulation.h>

#include <fmt/format.h>

#include <algorithm>

namespace palimpsest {
namespace {

constexpr int kOwnGroups = 4; // shard, replicate, data, world; tie groups follow

} // namespace

Simulation::Simulation(
    const WorldPlans& plans,
    const Job& job,
    const PlanBudget& budget,
    Traced traced)
    : job_(job), budget_(budget), traced_(traced), peers_(1) {
  const auto world = static_cast<size_t>(job.mesh().world());
  check(plans.size() == world, "{} plans for {} ranks", plans.size(), world);
  check(
      budget.empty() || budget.size() == world,
      "a budget for {} of {} ranks",
      budget.size(),
      world);
  begin(plans);
}

Simulation::Simulation(const Plans& plans, const Job& job, LinkSeconds seconds)
    : job_(job), traced_{0, nullptr}, peers_(job.mesh().data()), seconds_(std::move(seconds)) {
  const Mesh& mesh = job.mesh();
  check(
      plans.size() == static_cast<size_t>(mesh.pipeline),
      "{} plans for {} pipeline ranks",
      plans.size(),
      mesh.pipeline);
  WorldPlans one_of_each;
  for (const StepPlan& plan : plans) {
    one_of_each.push_back(&plan);
  }
  begin(one_of_each);
}

/// `plans`: of the ranks that are simulated.
void Simulation::begin(const WorldPlans& plans) {
  const Mesh& mesh = job_.mesh();
  const auto world = static_cast<size_t>(mesh.world());
  std::map<std::vector<int>, int> classes;
  for (int unit = 0; unit < static_cast<int>(job_.model().units.size()); ++unit) {
    const auto number = static_cast<int>(classes.size());
    tie_class_.push_back(classes.try_emplace(job_.tie_ranks(unit), number).first->second);
  }
  tie_classes_ = static_cast<int>(classes.size());
  groups_.resize(
      world / static_cast<size_t>(mesh.shard) + world / static_cast<size_t>(mesh.replicate) +
      static_cast<size_t>(mesh.pipeline) + 1 + classes.size() * static_cast<size_t>(mesh.data()));

  std::map<std::pair<const StepPlan*, int>, size_t> known;
  std::vector<size_t> which;
  compiled_.reserve(plans.size());
  for (size_t index = 0; index < plans.size(); ++index) {
    const int pipeline_rank = mesh.pipeline_rank(static_cast<int>(index) * peers_);
    const auto [entry, fresh] = known.try_emplace({plans[index], pipeline_rank}, compiled_.size());
    if (fresh) {
      compiled_.emplace_back(*plans[index], pipeline_rank, job_);
    }
    which.push_back(entry->second);
  }
  const int start = new_event(0, true);
  ranks_.resize(plans.size());
  for (size_t index = 0; index < plans.size(); ++index) {
    begin_rank(static_cast<int>(index) * peers_, compiled_[which[index]], start);
  }
}

/// With its persistent states; `start`: the event of their being there.
void Simulation::begin_rank(int number, const CompiledPlan& compiled, int start) {
  Rank& rank = rank_of(number);
  rank.number = number;
  rank.data = job_.mesh().data_rank(number);
  rank.compiled = &compiled;
  rank.copies.resize(compiled.places().size());
  rank.lanes.fill(kNoEvent);
  rank.met.resize(static_cast<size_t>(kOwnGroups + tie_classes_));
  rank.losses.resize(static_cast<size_t>(job_.micro_batches()));
  rank.ran.resize(job_.model().blocks.size() * static_cast<size_t>(job_.micro_batches()));
  rank.report.device_bytes.reserve(compiled.plan().size());
  const size_t states = job_.persistent(compiled.pipeline_rank()).size();
  for (int place = 0; place < static_cast<int>(states); ++place) { // compiled first, in this order
    Copy& copy = rank.copies[static_cast<size_t>(place)];
    copy.live = true;
    copy.age = Age::kOld;
    copy.ready = start;
    copy.bytes = job_.size(compiled.places()[static_cast<size_t>(place)].slot);
    charge(rank, place, copy.bytes);
  }
  measure(rank, 0);
}

PlanReport Simulation::run() {
  for (bool progress = true; progress;) {
    progress = false;
    for (Rank& rank : ranks_) {
      while (!rank.finished() && issue(rank)) {
        ++rank.next;
        progress = true;
      }
    }
  }
  std::string stuck;
  for (const Rank& rank : ranks_) {
    if (!rank.finished()) {
      stuck += fmt::format(
          "{}rank {} at {}", stuck.empty() ? "" : "; ", rank.number, to_text(rank.op()));
    }
  }
  if (!stuck.empty()) {
    throw PlanError("deadlock: " + stuck);
  }
  PlanReport report;
  for (Rank& rank : ranks_) {
    check_end(rank);
    report.ranks.push_back(std::move(rank.report));
  }
  const std::vector<double> ends = end_times();
  report.seconds = *std::max_element(ends.begin(), ends.end());
  for (size_t op = 0; op < traced_events_.size(); ++op) {
    const auto event = static_cast<size_t>(traced_events_[op]);
    traced_.to->ops[op].begin = ends[event] - events_[event].seconds;
    traced_.to->ops[op].end = ends[event];
  }
  return report;
}

/// The rank's next operation; false where it has to wait.
bool Simulation::issue(Rank& rank) {
  wait_for_operands(rank);
  if (!std::all_of(waits_.begin(), waits_.end(), [&](int event) {
        return events_[static_cast<size_t>(event)].done;
      })) {
    return false;
  }
  check_rules(rank);
  const Op& op = rank.op();
  const int event = enter(rank);
  for (const int waited : waits_) {
    order(waited, event);
  }
  if (rank.issued != kNoEvent) {
    order(rank.issued, event);
  }
  if (const auto on = lane(op)) {
    int& last = rank.lanes[*on];
    if (last != kNoEvent) {
      order(last, event);
    }
    last = event;
    rank.report.busy[*on] += events_[static_cast<size_t>(event)].seconds;
  }
  if (!rank.scratch.empty()) {
    std::erase_if(rank.scratch, [&](const auto& entry) {
      return std::find(waits_.begin(), waits_.end(), entry.first) != waits_.end();
    });
  }
  start(rank, event);
  return true;
}

/// What must be live, or must not be; fills waits_ with the events to wait for.
void Simulation::wait_for_operands(const Rank& rank) {
  waits_.clear();
  const Op& op = rank.op();
  const auto describe = [&](int place) {
    const Place& named = rank.compiled->places()[static_cast<size_t>(place)];
    return std::pair(to_text(named.slot), to_text(named.tier));
  };
  for (const auto& [place, use] : rank.compiled->uses(rank.next)) {
    const Copy& copy = rank.copies[static_cast<size_t>(place)];
    if (use == Use::kCreates || (use == Use::kAdds && !copy.live)) {
      if (copy.live) {
        const auto [slot, tier] = describe(place);
        fail(rank, fmt::format("would overwrite {} on the {}", slot, tier));
      }
      continue;
    }
    if (!copy.live || (copy.spent && use != Use::kFrees)) {
      const auto [slot, tier] = describe(place);
      fail(
          rank,
          copy.live ? fmt::format("{} was used up", slot)
                    : fmt::format("{} is not live on the {}", slot, tier));
    }
    waits_.push_back(copy.ready);
    if (use != Use::kReads && use != Use::kSpends) {
      waits_.insert(waits_.end(), copy.readers.begin(), copy.readers.end());
    }
  }
  if (op.kind == OpKind::kAgree) {
    for (size_t place = 0; place < rank.copies.size(); ++place) {
      const SlotKind kind = rank.compiled->places()[place].slot.kind;
      const bool gradient = kind == SlotKind::kGradBuffer || kind == SlotKind::kGradShard;
      if (gradient && rank.copies[place].live) {
        waits_.push_back(rank.copies[place].ready);
      }
    }
  }
  if (op.kind == OpKind::kUpdate || op.kind == OpKind::kPublish || op.kind == OpKind::kCommit) {
    if (rank.agreed == kNoEvent) {
      fail(rank, "nothing persistent changes before AGREE");
    }
    waits_.push_back(rank.agreed);
  }
}

/// Begins slots and charges them.
void Simulation::start(Rank& rank, int event) {
  const Op& op = rank.op();
  const auto uses = rank.compiled->uses(rank.next);
  bool started = false;
  for (const auto& [place, use] : uses) {
    Copy& copy = rank.copies[static_cast<size_t>(place)];
    if (copy.live || (use != Use::kCreates && use != Use::kAdds)) {
      continue;
    }
    started = true;
    copy.live = true;
    copy.spent = false;
    copy.lean = op.kind == OpKind::kForward && op.tape == TapeMode::kLean;
    copy.age = Age::kNone;
    copy.ready = event;
    copy.content.clear();
    copy.readers.clear();
    if (op.kind == OpKind::kStash || op.kind == OpKind::kFetch) {
      const Copy& source = rank.copies[static_cast<size_t>(uses.front().place)];
      copy.bytes = source.bytes;
      copy.content = source.content;
      copy.age = source.age;
      copy.lean = source.lean;
    } else {
      const TapeMode tape = op.kind == OpKind::kForward ? op.tape : TapeMode::kFull;
      copy.bytes = job_.size(rank.compiled->places()[static_cast<size_t>(place)].slot, tape);
    }
    charge(rank, place, copy.bytes);
  }
  accumulate(rank, event);
  finish(rank, event, started);
}

/// What the operation itself adds to gradients, and who reads what.
void Simulation::accumulate(Rank& rank, int event) {
  const Op& op = rank.op();
  for (const auto& [place, use] : rank.compiled->uses(rank.next)) {
    Copy& copy = rank.copies[static_cast<size_t>(place)];
    if (use == Use::kAdds || use == Use::kChanges) {
      copy.ready = event;
      if (is_compute(op.kind)) {
        const Slot& slot = rank.compiled->places()[static_cast<size_t>(place)].slot;
        const size_t mine = slot.kind == SlotKind::kGrad
            ? static_cast<size_t>(op.block)
            : contribution(slot.owner, op.block, rank.data, op.mb);
        if (!copy.content.add(mine)) {
          fail(rank, "a gradient contribution would be counted twice");
        }
      }
    } else if (use == Use::kReads || use == Use::kSpends) {
      if (is_asynchronous(op.kind)) {
        copy.readers.push_back(event);
      }
      copy.spent |= use == Use::kSpends;
    }
  }
}

/// What other ranks contribute, the workspace, and what is freed.
void Simulation::finish(Rank& rank, int event, bool started) {
  const Op& op = rank.op();
  deliver(rank, event);
  const int64_t bytes = workspace(rank, op, started);
  const bool asynchronous = is_asynchronous(op.kind);
  if (asynchronous && bytes > 0) {
    rank.scratch.emplace_back(event, bytes);
  }
  rank.report.device_bytes.push_back(measure(rank, asynchronous ? 0 : bytes));
  record(rank, event);
  check_budget(rank);
  for (const auto& [place, use] : rank.compiled->uses(rank.next)) {
    if (use == Use::kFrees) {
      Copy& copy = rank.copies[static_cast<size_t>(place)];
      copy.live = false;
      charge(rank, place, -copy.bytes);
      if (!copy.readers.empty()) {
        rank.issued = event;
      }
    }
  }
}

void Simulation::charge(Rank& rank, int place, int64_t bytes) {
  const auto& [slot, tier] = rank.compiled->places()[static_cast<size_t>(place)];
  rank.used[tier] += bytes;
  const int64_t held = rank.held[tier][slot.kind] += bytes;
  int64_t& most = rank.report.category[tier][static_cast<PlanCategory>(slot.kind)];
  most = std::max(most, held);
}

/// Returns the bytes on the device now.
int64_t Simulation::measure(Rank& rank, int64_t workspace) {
  for (const auto& [event, bytes] : rank.scratch) {
    workspace += bytes;
  }
  int64_t& most = rank.report.category[TierId::kDevice][PlanCategory::kWorkspace];
  most = std::max(most, workspace);
  for (const TierId tier : {TierId::kDevice, TierId::kHost, TierId::kDisk}) {
    const int64_t now = rank.used[tier] + (tier == TierId::kDevice ? workspace : 0);
    if (tier == TierId::kDevice && now > rank.report.peak[tier]) {
      for (const PlanCategory category : kSlotCategories) {
        rank.report.at_peak[category] = rank.held[tier][static_cast<SlotKind>(category)];
      }
      rank.report.at_peak[PlanCategory::kWorkspace] = workspace;
    }
    rank.report.peak[tier] = std::max(rank.report.peak[tier], now);
  }
  const auto& held = rank.held[TierId::kDevice];
  const int64_t activations = held[SlotKind::kValue] + held[SlotKind::kGrad] +
      held[SlotKind::kTape] + held[SlotKind::kWeightJobs];
  rank.report.activation_peak = std::max(rank.report.activation_peak, activations);
  return rank.used[TierId::kDevice] + workspace;
}

/// Keeps what the operation holds, where its rank is traced.
void Simulation::record(const Rank& rank, int event) {
  if (traced_.to == nullptr || rank.number != traced_.rank) {
    return;
  }
  TimelineOp& entry = traced_.to->ops.emplace_back();
  entry.lane = lane(rank.op());
  for (const PlanCategory category : kSlotCategories) {
    entry.bytes[category] = rank.held[TierId::kDevice][static_cast<SlotKind>(category)];
  }
  entry.bytes[PlanCategory::kWorkspace] =
      rank.report.device_bytes.back() - rank.used[TierId::kDevice];
  traced_events_.push_back(event);
}

int Simulation::new_event(double seconds, bool done) {
  events_.push_back({seconds, done});
  return static_cast<int>(events_.size()) - 1;
}

void Simulation::order(int before, int after) {
  if (before != after) {
    order_.emplace_back(before, after);
  }
}

/// The event of the rank's operation; a collective is one event of all its ranks.
int Simulation::enter(Rank& rank) {
  const Op& op = rank.op();
  if (is_collective(op.kind)) {
    return meet(rank);
  }
  return new_event(cost(rank, op), !is_transfer(op.kind));
}

/// Groups are numbered axis by axis; `own`: the number of the axis, of tie groups that of the class.
int Simulation::group_number(const Rank& rank, const Op& op, int& own) const {
  const Mesh& mesh = job_.mesh();
  const int pipeline_rank = rank.compiled->pipeline_rank();
  const int replicas = mesh.world() / mesh.shard; // where groups of replicas begin
  const int data = replicas + mesh.world() / mesh.replicate;
  const int world = data + mesh.pipeline;
  if (op.kind == OpKind::kAgree) {
    own = 3;
    return world;
  }
  if (op.kind != OpKind::kReduce || op.axis == ReduceAxis::kShard) {
    const bool all = op.kind == OpKind::kReduce && job_.reproducible();
    own = all ? 2 : 0;
    return all ? data + pipeline_rank : rank.number / mesh.shard;
  }
  if (op.axis == ReduceAxis::kReplicate) {
    own = 1;
    return replicas + pipeline_rank * mesh.shard + rank.data % mesh.shard;
  }
  const int tie = tie_class_[static_cast<size_t>(op.unit)];
  own = kOwnGroups + tie;
  return world + 1 + tie * mesh.data() + rank.data;
}

/// Every group meets its collectives in one order.
int Simulation::meet(Rank& rank) {
  const Op& op = rank.op();
  int own = 0;
  GroupState& state = groups_[static_cast<size_t>(group_number(rank, op, own))];
  if (state.group.ranks.empty()) {
    state.group = job_.group(rank.number, op);
    state.present = static_cast<size_t>(
        std::ranges::count_if(state.group.ranks, [&](int member) { return member % peers_ == 0; }));
  }
  const auto number = static_cast<size_t>(rank.met[static_cast<size_t>(own)]++);
  if (number == state.meetings.size()) {
    const auto ranks = static_cast<double>(state.group.ranks.size());
    state.meetings.push_back({op, new_event(cost(rank, op), ranks == 0), {}});
  }
  Meeting& meeting = state.meetings[number];
  if (meeting.op != op) {
    fail(
        rank,
        fmt::format(
            "the group of ranks [{}] meets {} here",
            fmt::join(state.group.ranks, ", "),
            to_text(meeting.op)));
  }
  meeting.came.push_back(rank.number);
  events_[static_cast<size_t>(meeting.event)].done = meeting.came.size() == state.present;
  if (op.kind == OpKind::kAgree) {
    rank.agreed = meeting.event;
  }
  return meeting.event;
}

/// Content that other ranks contribute to, once all parties are there.
void Simulation::deliver(Rank& rank, int event) {
  const Op& op = rank.op();
  if (is_collective(op.kind)) {
    if (events_[static_cast<size_t>(event)].done) {
      int own = 0;
      const GroupState& state = groups_[static_cast<size_t>(group_number(rank, op, own))];
      combine(rank, state.meetings[static_cast<size_t>(rank.met[static_cast<size_t>(own)] - 1)]);
    }
    return;
  }
  if (!is_transfer(op.kind)) {
    return;
  }
  const bool sends = op.kind == OpKind::kSend;
  const int peer = job_.mesh().peer(rank.number, op.peer);
  const int from = sends ? rank.number : peer;
  const int to = sends ? peer : rank.number;
  Channel& channel = channels_[{from, to}];
  auto& mine = sends ? channel.sends : channel.receives;
  mine.push_back({event, rank.compiled->uses(rank.next).front().place, op.slot});
  const size_t nth = mine.size() - 1;
  if (std::min(channel.sends.size(), channel.receives.size()) > nth) {
    transfer(rank, from, channel.sends[nth], to, channel.receives[nth]);
  }
}

void Simulation::transfer(
    const Rank& rank,
    int from,
    const Transfer& sent,
    int to,
    const Transfer& received) {
  if (sent.slot != received.slot) {
    fail(
        rank,
        fmt::format("{} is sent where {} is received", to_text(sent.slot), to_text(received.slot)));
  }
  events_[static_cast<size_t>(sent.event)].done = true;
  events_[static_cast<size_t>(received.event)].done = true;
  order(sent.event, received.event);
  if (sent.slot.kind == SlotKind::kGrad) {
    const Copy& source = rank_of(from).copies[static_cast<size_t>(sent.place)];
    add(rank_of(to).copies[static_cast<size_t>(received.place)].content, source.content, rank);
  }
}

void Simulation::combine(const Rank& rank, const Meeting& meeting) {
  const Op& op = meeting.op;
  const auto each = [&](SlotKind kind, const auto& act) {
    for (const int member : meeting.came) {
      act(copy_of(rank_of(member), kind, op.unit));
    }
  };
  if (op.kind == OpKind::kGather || op.kind == OpKind::kPublish) {
    const bool gathers = op.kind == OpKind::kGather;
    const Age wanted = gathers ? Age::kOld : Age::kPartial;
    each(gathers ? SlotKind::kParamShard : SlotKind::kParam, [&](const Copy& copy) {
      if (copy.age != wanted) {
        fail(
            rank,
            fmt::format(
                "the shards of the parameters are not all {}", gathers ? "old" : "partial"));
      }
    });
    each(SlotKind::kParam, [&](Copy& copy) { copy.age = gathers ? Age::kOld : Age::kNew; });
  } else if (op.kind == OpKind::kReduce) {
    const bool shard = op.axis == ReduceAxis::kShard;
    const SlotKind target = job_.gradient(op.unit).kind;
    Contributions total;
    each(shard ? SlotKind::kGradBuffer : target, [&](const Copy& copy) {
      add(total, copy.content, rank);
    });
    each(target, [&](Copy& copy) {
      if (!shard) {
        copy.content.clear();
      }
      add(copy.content, total, rank);
    });
  }
}

Simulation::Copy& Simulation::copy_of(Rank& rank, SlotKind kind, int unit) {
  const int place = rank.compiled->unit_place(kind, unit, TierId::kDevice);
  return rank.copies[static_cast<size_t>(place)];
}

void Simulation::add(Contributions& target, const Contributions& more, const Rank& rank) const {
  if (!target.add(more)) {
    fail(rank, "a gradient contribution would be counted twice");
  }
}

void Simulation::fail(const Rank& rank, const std::string& rule) const {
  const std::string op = rank.finished() ? "the end" : to_text(rank.op());
  throw PlanError(fmt::format("rank {}, operation {}, {}: {}", rank.number, rank.next, op, rule));
}

} // namespace palimpsest
