#include <palimpsest/parallel/comm/in_process.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/operands.h>
#include <palimpsest/parallel/comm/ordered_sum.h>

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <map>
#include <mutex>
#include <optional>
#include <tuple>

namespace palimpsest {

namespace {

enum class Kind { kAllGather, kReduceScatter, kAllReduce, kBroadcast, kTransfer, kBarrier, kSplit };

/// What all ranks of one operation must say alike.
struct Signature {
  Kind kind;
  std::string text; // "broadcast from rank 2 of 10 Float"
  ReduceOp op = ReduceOp::kSum;
  int root = 0;
};

/// What one rank gives to an operation: where it reads, where it writes, or its wish in a split.
struct Operand {
  at::Tensor in;
  at::Tensor out;
  int color = 0;
  int key = 0;
  std::string name;
};

/// What the ranks of one world share: one lock, one way to be woken, one end.
struct World {
  std::mutex mutex;
  std::condition_variable changed;
  std::optional<std::string> aborted;
  CommSettings settings;

  void abort(const std::string& reason) {
    const std::lock_guard lock(mutex);
    if (!aborted) {
      aborted = reason;
    }
    changed.notify_all();
  }
};

struct Group;

/// One operation of a group. Its work is cut into parts which any waiting rank may take once all
/// operands are there.
struct Round {
  Signature signature;
  std::string name; // "reduce_scatter 12"
  std::vector<int> ranks; // who takes part
  std::map<int, Operand> operands; // by rank
  int parts = 0;
  int taken = 0;
  int finished = 0;
  std::map<int, std::shared_ptr<Group>> split; // by colour
  std::map<int, int> rank_in_split; // by rank here

  bool complete() const {
    return operands.size() == ranks.size();
  }
  bool done() const {
    return complete() && finished == parts;
  }
};

/// First and last rank and number of a channel's operation; -1, -1 for collectives.
using Channel = std::tuple<int, int, int64_t>;

struct Group {
  std::shared_ptr<World> world;
  std::string name;
  int size = 0;
  std::map<Channel, std::shared_ptr<Round>> open; // operations that some rank has yet to join
};

char* bytes(const at::Tensor& tensor) {
  return static_cast<char*>(tensor.data_ptr());
}

void copy_bytes(void* to, const void* from, size_t count) {
  if (to != from && count > 0) {
    std::memcpy(to, from, count);
  }
}

/// Everybody's operand, from `offset` bytes on, in rank order.
std::vector<const void*> inputs(const Round& round, size_t offset) {
  std::vector<const void*> result;
  for (const auto& [rank, operand] : round.operands) {
    result.push_back(bytes(operand.in) + offset);
  }
  return result;
}

/// Slice `part` of an all-reduce: added once, and written to all ranks.
void all_reduce_slice(const Round& round, int part) {
  const at::Tensor& first = round.operands.begin()->second.in;
  const int64_t n = first.numel();
  const int64_t begin = n * part / round.parts;
  const int64_t count = n * (part + 1) / round.parts - begin;
  const size_t offset = begin * first.element_size();
  reduce_in_order(
      inputs(round, offset), first.scalar_type(), round.signature.op, bytes(first) + offset, count);
  for (const auto& [rank, operand] : round.operands) {
    copy_bytes(bytes(operand.in) + offset, bytes(first) + offset, count * first.element_size());
  }
}

void make_split(Round& round, const Group& parent) {
  std::map<int, std::vector<std::pair<int, int>>> members; // by colour: (key, rank)
  for (const auto& [rank, operand] : round.operands) {
    members[operand.color].emplace_back(operand.key, rank);
  }
  for (auto& [color, ranks] : members) {
    std::ranges::sort(ranks);
    auto group = std::make_shared<Group>();
    group->world = parent.world;
    group->name = round.operands.at(ranks.front().second).name;
    group->size = static_cast<int>(ranks.size());
    for (int place = 0; place < group->size; ++place) {
      round.rank_in_split[ranks[place].second] = place;
    }
    round.split[color] = std::move(group);
  }
}

/// Does one part of a round's work; a part belongs to the rank of its number where there is one
/// per rank.
void perform(Round& round, const Group& group, int part) {
  const auto mine = round.operands.find(part);
  switch (round.signature.kind) {
    case Kind::kAllGather: {
      const size_t count = mine->second.in.nbytes();
      for (const auto& [rank, operand] : round.operands) {
        copy_bytes(bytes(mine->second.out) + rank * count, bytes(operand.in), count);
      }
      return;
    }
    case Kind::kReduceScatter: {
      const at::Tensor& sum = mine->second.out;
      const size_t offset = part * sum.numel() * mine->second.in.element_size();
      add_in_order(
          inputs(round, offset),
          mine->second.in.scalar_type(),
          sum.data_ptr(),
          sum.scalar_type(),
          sum.numel());
      return;
    }
    case Kind::kAllReduce:
      return all_reduce_slice(round, part);
    case Kind::kBroadcast:
      return copy_bytes(
          bytes(mine->second.out),
          bytes(round.operands.at(round.signature.root).in),
          mine->second.out.nbytes());
    case Kind::kTransfer: {
      const Operand& from = round.operands.at(round.ranks[0]);
      return copy_bytes(
          bytes(round.operands.at(round.ranks[1]).out), bytes(from.in), from.in.nbytes());
    }
    case Kind::kSplit:
      return make_split(round, group);
    case Kind::kBarrier:
      return;
  }
}

/// Does what can be done of a round now. Holds `lock` before and after, not while working.
void progress(Round& round, const Group& group, std::unique_lock<std::mutex>& lock) {
  while (round.complete() && round.taken < round.parts && !group.world->aborted) {
    const int part = round.taken++;
    lock.unlock();
    std::optional<std::string> failure;
    try {
      perform(round, group, part);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    if (failure) {
      group.world->aborted = failure;
    }
    if (++round.finished == round.parts) {
      for (auto& [rank, operand] : round.operands) { // a slower rank keeps nobody's tensors alive
        operand.in = operand.out = at::Tensor();
      }
    }
    if (round.finished == round.parts || group.world->aborted) {
      group.world->changed.notify_all();
    }
  }
}

std::string describe(const Group& group) {
  return fmt::format("'{}' (in-process, {} ranks)", group.name, group.size);
}

class RoundAction final : public Ticket::Action {
 public:
  RoundAction(std::shared_ptr<Round> round, std::shared_ptr<Group> group)
      : round_(std::move(round)), group_(std::move(group)) {}

  bool done() override {
    std::unique_lock lock(world().mutex);
    progress(*round_, *group_, lock);
    return round_->done() || (world().aborted && round_->taken == round_->finished);
  }

  void wait() override {
    std::unique_lock lock(world().mutex);
    const bool unwinding = std::uncaught_exceptions() > 0;
    const auto deadline = std::chrono::steady_clock::now() +
        (unwinding ? kUnwindingTimeout : world().settings.timeout);
    progress(*round_, *group_, lock);
    while (!round_->done() && !world().aborted) {
      if (round_->complete()) {
        world().changed.wait(lock);
      } else if (
          world().changed.wait_until(lock, deadline) == std::cv_status::timeout &&
          !round_->complete() && !world().aborted) {
        world().aborted = unwinding ? "a rank ends after an error" : missing();
        world().changed.notify_all();
      }
      progress(*round_, *group_, lock);
    }
    if (!round_->done()) {
      // Somebody may still read this rank's operand.
      world().changed.wait(lock, [this] { return round_->taken == round_->finished; });
      throw EnvironmentError(
          "{} of {} did not finish: {}", round_->name, describe(*group_), *world().aborted);
    }
  }

 private:
  World& world() {
    return *group_->world;
  }

  std::string missing() {
    std::vector<int> late;
    for (const int rank : round_->ranks) {
      if (!round_->operands.contains(rank)) {
        late.push_back(rank);
      }
    }
    return fmt::format(
        "rank {} did not come to {} of '{}' within {} s",
        fmt::join(late, ", "),
        round_->name,
        group_->name,
        std::chrono::duration<double>(world().settings.timeout).count());
  }

  std::shared_ptr<Round> round_;
  std::shared_ptr<Group> group_;
};

std::string text_of(const at::Tensor& tensor) {
  return fmt::format("{} {}", tensor.numel(), c10::toString(tensor.scalar_type()));
}

class InProcess final : public Communicator {
 public:
  InProcess(std::shared_ptr<Group> group, int rank) : group_(std::move(group)), rank_(rank) {}

  int rank() const override {
    return rank_;
  }
  int size() const override {
    return group_->size;
  }
  std::string description() const override {
    return fmt::format("in-process, {} of {}", group_->name, group_->size);
  }

  Ticket all_gather(const at::Tensor& mine, const at::Tensor& whole) override {
    check_all_gather(mine, whole, size());
    return collective(
        {Kind::kAllGather, "all_gather of " + text_of(mine)}, {.in = mine, .out = whole}, size());
  }

  Ticket reduce_scatter(const at::Tensor& whole, const at::Tensor& mine) override {
    check_reduce_scatter(whole, mine, size());
    return collective(
        {Kind::kReduceScatter, "reduce_scatter of " + text_of(whole)},
        {.in = whole, .out = mine},
        size());
  }

  Ticket all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    check_all_reduce(tensor);
    static constexpr const char* kNames[] = {"sum", "max", "min"};
    const std::string text =
        fmt::format("all_reduce ({}) of {}", kNames[static_cast<int>(op)], text_of(tensor));
    return collective({Kind::kAllReduce, text, op}, {.in = tensor, .out = tensor}, size());
  }

  Ticket broadcast(const at::Tensor& tensor, int root) override {
    check_broadcast(tensor, root, size());
    const std::string text = fmt::format("broadcast from rank {} of {}", root, text_of(tensor));
    return collective(
        {.kind = Kind::kBroadcast, .text = text, .root = root},
        {.in = tensor, .out = tensor},
        size());
  }

  Ticket send(const at::Tensor& tensor, int peer) override {
    check_transfer(tensor, peer, rank_, size());
    return transfer(rank_, peer, sent_[peer]++, {.in = tensor}, text_of(tensor));
  }

  Ticket receive(const at::Tensor& tensor, int peer) override {
    check_transfer(tensor, peer, rank_, size());
    return transfer(peer, rank_, received_[peer]++, {.out = tensor}, text_of(tensor));
  }

  Ticket barrier() override {
    return collective({Kind::kBarrier, "barrier"}, {}, 1);
  }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    std::shared_ptr<Round> round = join(
        {-1, -1, issued_++},
        {Kind::kSplit, "split"},
        {.color = color, .key = key, .name = name},
        everybody(),
        1);
    RoundAction(round, group_).wait();
    return std::make_unique<InProcess>(round->split.at(color), round->rank_in_split.at(rank_));
  }

  void abort(const std::string& reason) noexcept override {
    group_->world->abort(fmt::format("rank {} of '{}' aborted: {}", rank_, group_->name, reason));
  }

 private:
  std::vector<int> everybody() const {
    std::vector<int> ranks(size());
    for (int rank = 0; rank < size(); ++rank) {
      ranks[rank] = rank;
    }
    return ranks;
  }

  Ticket collective(Signature signature, Operand operand, int parts) {
    return ticket(
        join({-1, -1, issued_++}, std::move(signature), std::move(operand), everybody(), parts));
  }

  Ticket transfer(int from, int to, int64_t number, Operand operand, const std::string& what) {
    const std::string text = fmt::format("transfer of {} from rank {} to {}", what, from, to);
    return ticket(
        join({from, to, number}, {Kind::kTransfer, text}, std::move(operand), {from, to}, 1));
  }

  Ticket ticket(std::shared_ptr<Round> round) const {
    return Ticket(std::make_unique<RoundAction>(std::move(round), group_));
  }

  /// Adds this rank's operand to an operation, which the first to come opens.
  std::shared_ptr<Round> join(
      const Channel& channel,
      Signature signature,
      Operand operand,
      std::vector<int> ranks,
      int parts) {
    World& world = *group_->world;
    const std::lock_guard lock(world.mutex);
    std::shared_ptr<Round>& entry = group_->open[channel];
    if (entry == nullptr) {
      entry = std::make_shared<Round>();
      entry->signature = std::move(signature);
      entry->name = fmt::format("{} (number {})", entry->signature.text, std::get<2>(channel) + 1);
      entry->ranks = std::move(ranks);
      entry->parts = parts;
    } else if (entry->signature.text != signature.text) {
      const std::string mismatch = fmt::format(
          "rank {} of {} issued {} where rank {} issued {}",
          rank_,
          describe(*group_),
          signature.text,
          entry->operands.begin()->first,
          entry->name);
      world.aborted = world.aborted.value_or(mismatch);
      world.changed.notify_all();
      check(false, "{}", mismatch);
    }
    std::shared_ptr<Round> round = entry;
    round->operands.emplace(rank_, std::move(operand));
    if (round->complete()) {
      group_->open.erase(channel);
      world.changed.notify_all();
    }
    return round;
  }

  std::shared_ptr<Group> group_;
  int rank_;
  int64_t issued_ = 0;
  std::map<int, int64_t> sent_;
  std::map<int, int64_t> received_;
};

} // namespace

std::vector<std::unique_ptr<Communicator>> in_process_world(
    int size,
    const CommSettings& settings) {
  check(size > 0, "a world of {} ranks", size);
  auto group = std::make_shared<Group>();
  group->world = std::make_shared<World>();
  group->world->settings = settings;
  group->name = "world";
  group->size = size;
  std::vector<std::unique_ptr<Communicator>> ranks;
  for (int rank = 0; rank < size; ++rank) {
    ranks.push_back(std::make_unique<InProcess>(group, rank));
  }
  return ranks;
}

} // namespace palimpsest
