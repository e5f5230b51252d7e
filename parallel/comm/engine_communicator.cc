#include <palimpsest/parallel/comm/engine_communicator.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/operands.h>
#include <palimpsest/parallel/comm/ordered_sum.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <thread>
#include <utility>

namespace palimpsest {

namespace {

using Clock = std::chrono::steady_clock;

/// What an operation in flight shares with its group.
struct Group {
  std::shared_ptr<Engine> engine;
  GroupMembers members;
  CommSettings settings;
  std::shared_ptr<Heartbeat> heartbeat;

  std::string describe() const {
    return fmt::format(
        "'{}' ({}, {} ranks)",
        members.name,
        engine == nullptr ? "one rank" : engine->name(),
        members.ranks.size());
  }
};

/// Gives the processor away while one waits: at first often, since a library that gets on only when
/// polled pays for each pause.
class Patience {
 public:
  explicit Patience(bool others_work)
      : spin_until_(Clock::now() + (others_work ? kShort : kLong)) {}
  void pause() {
    if (Clock::now() < spin_until_) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPause);
    }
  }

 private:
  static constexpr std::chrono::microseconds kShort{30};
  static constexpr std::chrono::milliseconds kLong{20};
  static constexpr std::chrono::microseconds kPause{50};
  Clock::time_point spin_until_;
};

constexpr std::chrono::milliseconds kLastChance{100};

class EngineAction final : public Ticket::Action {
 public:
  /// `finish` runs once on this rank when the engine is done; may be empty.
  EngineAction(
      std::unique_ptr<Request> request,
      std::shared_ptr<Group> group,
      std::string what,
      OperationPlace place,
      std::function<void()> finish)
      : request_(std::move(request)), group_(std::move(group)), what_(std::move(what)),
        place_(std::move(place)), finish_(std::move(finish)) {}

  bool done() override {
    return heartbeat().ended() || poll();
  }

  void wait() override {
    if (heartbeat().ended() || !poll()) {
      wait_for_peers();
    }
    if (request_ != nullptr) {
      fail(heartbeat().reason());
    }
    if (error_) {
      std::rethrow_exception(error_);
    }
  }

 private:
  Heartbeat& heartbeat() {
    return *group_->heartbeat;
  }

  /// Until the operation is done or the world has ended.
  void wait_for_peers() {
    heartbeat().status().set_waiting_for(what_ + " of " + group_->members.name);
    Patience patience(group_->engine->progresses_alone());
    const bool unwinding = std::uncaught_exceptions() > 0;
    Clock::time_point deadline =
        Clock::now() + (unwinding ? kUnwindingTimeout : group_->settings.timeout);
    while (!heartbeat().ended() && !poll()) {
      if (Clock::now() > deadline && unwinding) {
        heartbeat().end(fmt::format("rank {} ends after an error", heartbeat().rank()));
      } else if (Clock::now() > deadline) {
        deadline = Clock::now() + more_time();
      }
      patience.pause();
    }
    heartbeat().status().set_waiting_for("");
  }

  bool poll() {
    if (request_ == nullptr) {
      return true;
    }
    try {
      if (!request_->poll()) {
        return false;
      }
    } catch (const std::exception& error) {
      explain_failure(message_of(error));
      return false;
    }
    request_.reset();
    if (finish_) {
      try {
        finish_();
      } catch (...) {
        error_ = std::current_exception(); // done, but the result is not there
      }
    }
    return true;
  }

  /// A library sees only that a connection broke; the peers know why.
  void explain_failure(const std::string& library_says) {
    std::string reason;
    try {
      if (heartbeat().ask_whether_ended()) {
        return;
      }
      reason = heartbeat().explain(place_);
      if (heartbeat().ask_whether_ended()) {
        return;
      }
    } catch (const std::exception& error) {
      reason = fmt::format("the other ranks cannot be asked: {}", message_of(error));
    }
    heartbeat().end(fmt::format(
        "{} of {} failed on rank {}: {}\n{} says: {}",
        what_,
        group_->describe(),
        heartbeat().rank(),
        reason,
        group_->engine->name(),
        library_says));
  }

  /// The time has come: how much more there is since a peer has been in declared long work. None:
  /// the world ends.
  std::chrono::milliseconds more_time() {
    const std::chrono::milliseconds timeout = group_->settings.timeout;
    std::string reason;
    try {
      const auto since = heartbeat().since_long_work(place_.ranks);
      if (since && *since < timeout) {
        return timeout - *since;
      }
      reason = heartbeat().explain(place_);
    } catch (const std::exception& error) {
      reason = fmt::format("the other ranks cannot be asked: {}", message_of(error));
    }
    // It may have been done meanwhile, by a library that gets on only when polled; the peer has then
    // gone on and, at the run's end, gone.
    const Clock::time_point last_chance = Clock::now() + kLastChance;
    Patience patience(false);
    while (!poll() && Clock::now() < last_chance) {
      patience.pause();
    }
    if (request_ != nullptr) {
      heartbeat().end(fmt::format(
          "{} of {} was not done within {} s on rank {}: {}",
          what_,
          group_->describe(),
          std::chrono::duration<double>(timeout).count(),
          heartbeat().rank(),
          reason));
    }
    return timeout;
  }

  [[noreturn]] void fail(const std::string& reason) {
    static_cast<void>(request_.release()); // see Request
    group_->engine->give_up();
    if (reason.starts_with(what_)) {
      throw EnvironmentError("{}", reason);
    }
    throw EnvironmentError(
        "{} of {} ends on rank {}: {}", what_, group_->describe(), heartbeat().rank(), reason);
  }

  std::unique_ptr<Request> request_;
  std::shared_ptr<Group> group_;
  std::string what_;
  OperationPlace place_;
  std::function<void()> finish_;
  std::exception_ptr error_; // of finish_
};

void add_parts(const at::Tensor& parts, const at::Tensor& sum, int ranks) {
  const int64_t n = sum.numel();
  if (sum.is_cpu()) {
    const auto* bytes = static_cast<const char*>(parts.const_data_ptr());
    std::vector<const void*> pointers;
    for (int rank = 0; rank < ranks; ++rank) {
      pointers.push_back(bytes + rank * n * parts.element_size());
    }
    add_in_order(pointers, parts.scalar_type(), sum.data_ptr(), sum.scalar_type(), n);
    return;
  }
  const at::Tensor flat = parts.view({-1});
  for (int rank = 0; rank < ranks; ++rank) {
    sum.view({-1}).add_(flat.narrow(0, rank * n, n));
  }
}

class EngineCommunicator final : public Communicator {
 public:
  explicit EngineCommunicator(Group group) : group_(std::make_shared<Group>(std::move(group))) {}

  int rank() const override {
    return group_->members.rank;
  }
  int size() const override {
    return static_cast<int>(group_->members.ranks.size());
  }
  std::string description() const override {
    return fmt::format(
        "{}, {} of {}",
        group_->engine == nullptr ? "one rank" : group_->engine->name(),
        group_->members.name,
        size());
  }

  Ticket all_gather(const at::Tensor& mine, const at::Tensor& whole) override {
    check_all_gather(mine, whole, size());
    if (size() == 1 && mine.const_data_ptr() != whole.const_data_ptr()) {
      whole.view({-1}).copy_(mine.view({-1}));
    }
    return collective(
        "all_gather", whole, [&] { return engine().all_gather(bytes_of(mine), bytes_of(whole)); });
  }

  Ticket reduce_scatter(const at::Tensor& whole, const at::Tensor& mine) override {
    check_reduce_scatter(whole, mine, size());
    if (size() == 1) {
      add_parts(whole, mine, 1);
      return {};
    }
    const at::Tensor parts = at::empty(whole.numel(), whole.options());
    return collective(
        "reduce_scatter",
        whole,
        [&] { return engine().all_to_all(bytes_of(whole), bytes_of(parts)); },
        [parts, mine, ranks = size()] { add_parts(parts, mine, ranks); });
  }

  Ticket all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    check_all_reduce(tensor);
    return collective(
        "all_reduce", tensor, [&] { return engine().all_reduce(tensor.view({-1}), op); });
  }

  Ticket broadcast(const at::Tensor& tensor, int root) override {
    check_broadcast(tensor, root, size());
    return collective(
        "broadcast", tensor, [&] { return engine().broadcast(bytes_of(tensor), root); });
  }

  Ticket send(const at::Tensor& tensor, int peer) override {
    check_transfer(tensor, peer, rank(), size());
    return transfer("send to", tensor, peer, [&] { return engine().send(bytes_of(tensor), peer); });
  }

  Ticket receive(const at::Tensor& tensor, int peer) override {
    check_transfer(tensor, peer, rank(), size());
    return transfer(
        "receive from", tensor, peer, [&] { return engine().receive(bytes_of(tensor), peer); });
  }

  Ticket barrier() override {
    return collective("barrier", {}, [&] { return engine().barrier(); });
  }

  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    std::vector<std::pair<int64_t, int>> members; // key and rank
    const at::Tensor mine = at::tensor({int64_t{color}, int64_t{key}}, at::kLong);
    const at::Tensor all = at::empty({2 * size()}, at::kLong);
    all_gather(mine, all).wait();
    for (int rank = 0; rank < size(); ++rank) {
      if (all.data_ptr<int64_t>()[2 * rank] == color) {
        members.emplace_back(all.data_ptr<int64_t>()[2 * rank + 1], rank);
      }
    }
    std::ranges::sort(members);
    GroupMembers sub{
        .name = name, .id = fmt::format("{}/{}.{}", group_->members.id, issued_, color)};
    std::vector<int> ranks_here;
    for (const auto& [unused, rank] : members) {
      if (rank == this->rank()) {
        sub.rank = static_cast<int>(ranks_here.size());
      }
      ranks_here.push_back(rank);
      sub.ranks.push_back(group_->members.ranks[rank]);
    }
    std::shared_ptr<Engine> engine_of_sub;
    if (ranks_here.size() > 1) {
      engine_of_sub = engine().split(ranks_here, sub.rank, sub.id);
    }
    return engine_communicator(
        std::move(engine_of_sub), std::move(sub), group_->settings, group_->heartbeat);
  }

  void abort(const std::string& reason) noexcept override {
    if (group_->engine != nullptr) {
      group_->engine->note_failure();
    }
    group_->heartbeat->end(fmt::format("rank {} aborted: {}", group_->heartbeat->rank(), reason));
  }

 private:
  Engine& engine() {
    return *group_->engine;
  }

  template <typename Start>
  Ticket collective(
      const char* name,
      const at::Tensor& tensor,
      const Start& start,
      std::function<void()> finish = {}) {
    group_->heartbeat->status().set_issued(group_->members.id, ++issued_);
    if (size() == 1 || (tensor.defined() && tensor.numel() == 0)) {
      return {};
    }
    return issue(
        fmt::format("{} {}", name, issued_),
        {group_->members.id, group_->members.ranks, issued_},
        start,
        std::move(finish));
  }

  template <typename Start>
  Ticket transfer(const char* name, const at::Tensor& tensor, int peer, const Start& start) {
    if (tensor.numel() == 0) {
      return {};
    }
    return issue(
        fmt::format("{} rank {}", name, peer),
        {group_->members.id, {group_->members.ranks[peer]}},
        start,
        {});
  }

  template <typename Start>
  Ticket issue(
      std::string what,
      OperationPlace place,
      const Start& start,
      std::function<void()> finish) {
    std::unique_ptr<Request> request;
    if (!group_->heartbeat->ended()) {
      try {
        request = start();
      } catch (const std::exception& error) {
        request = failed(message_of(error));
      }
    } else {
      request = failed(group_->heartbeat->reason());
    }
    return Ticket(std::make_unique<EngineAction>(
        std::move(request), group_, std::move(what), std::move(place), std::move(finish)));
  }

  /// An operation that could not begin fails when it is waited for, as one that broke later does.
  static std::unique_ptr<Request> failed(std::string reason) {
    class Failed final : public Request {
     public:
      explicit Failed(std::string text) : text_(std::move(text)) {}
      bool poll() override {
        throw EnvironmentError("{}", text_);
      }

     private:
      std::string text_;
    };
    return std::make_unique<Failed>(std::move(reason));
  }

  std::shared_ptr<Group> group_;
  int64_t issued_ = 0;
};

} // namespace

std::unique_ptr<Communicator> engine_communicator(
    std::shared_ptr<Engine> engine,
    GroupMembers members,
    const CommSettings& settings,
    std::shared_ptr<Heartbeat> heartbeat) {
  return std::make_unique<EngineCommunicator>(
      Group{std::move(engine), std::move(members), settings, std::move(heartbeat)});
}

} // namespace palimpsest
