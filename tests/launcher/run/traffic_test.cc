// What runs really send, and when: as planned, and while something is computed.

#include <palimpsest/core/plan/effects.h>
#include <palimpsest/core/plan/traffic.h>
#include <palimpsest/core/plan/unit_layout.h>
#include <palimpsest/parallel/comm/counting.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>

namespace palimpsest {
namespace {

using testing::Finished;
using testing::TestFolder;

/// Every unit's elements divide by 2, 3 and 4.
std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 48 * 9, 3);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 48, num_hidden_layers: 3, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 96, vocab_size: 256}}
data: {{files: [{}], format: text, sequence_length: 8}}
training: {{steps: 2, micro_batch_size: 1, threads: 1}}
optimizer: {{learning_rate: 1e-3}}
)",
      folder / "text.txt");
}

Traffic difference(const Traffic& after, const Traffic& before) {
  Traffic found;
  for (size_t kind = 0; kind < found.kinds.size(); ++kind) {
    found.kinds[kind] = {
        after.kinds[kind].calls - before.kinds[kind].calls,
        after.kinds[kind].bytes - before.kinds[kind].bytes};
  }
  return found;
}

int64_t calls(const Traffic& traffic) {
  int64_t sum = 0;
  for (const TrafficCount& count : traffic.kinds) {
    sum += count.calls;
  }
  return sum;
}

/// Compares each operation's messages with what the plan says of it, and the steps' with the sum.
class PlannedMessages final : public Observer {
 public:
  PlannedMessages(const PlannedStep& planned, const Traffic& counted)
      : planned_(planned), counted_(counted) {}

  void op_begin(size_t, const Op&) override {
    begin_ = counted_;
  }
  void op_end(size_t index, const Op& op) override {
    const Traffic mine = difference(counted_, begin_);
    if (op.kind == OpKind::kAgree) {
      agreed_ = mine.bytes();
      EXPECT_GE(agreed_, agreement(1).bytes);
      EXPECT_LE(agreed_, agreement(2).bytes);
      EXPECT_EQ(mine[CommKind::kAllGather].calls, agreement(1).calls);
      EXPECT_EQ(calls(mine), agreement(1).calls);
      return;
    }
    const Job& job = planned_.job;
    ASSERT_EQ(op, planned_.plan[index]);
    EXPECT_EQ(static_cast<double>(mine.bytes()), moved_bytes(op, job)) << to_text(op);
    const int64_t shards = job.mesh().shard > 1 ? 1 : 0;
    const int64_t replicas = job.mesh().replicate > 1 ? 1 : 0;
    Traffic expected = mine; // the bytes are compared above
    using enum CommKind;
    for (const CommKind kind : {kAllGather, kReduceScatter, kAllReduce}) {
      expected[kind].calls = 0;
    }
    if (op.kind == OpKind::kGather || op.kind == OpKind::kPublish) {
      expected[kAllGather].calls = shards;
    } else if (op.kind == OpKind::kReduce && op.axis == ReduceAxis::kReplicate) {
      expected[kAllReduce].calls = replicas;
    } else if (op.kind == OpKind::kReduce) {
      expected[kReduceScatter].calls = job.axis_ranks(op.unit, op.axis) > 1 ? 1 : 0;
      expected[kAllGather].calls = job.reproducible() ? replicas : 0;
    }
    EXPECT_EQ(mine, expected) << to_text(op);
    bytes_ += mine.bytes();
  }
  void step_end(const StepRecord&) override {
    EXPECT_EQ(static_cast<double>(bytes_), plan_traffic(planned_.plan, planned_.job).bytes());
    EXPECT_GT(bytes_, 0);
    // Besides: whether to stop (1 number), targets and tokens (2), peaks of memory and the wait (3).
    const Traffic step = difference(counted_, step_);
    const int64_t data = planned_.job.mesh().data();
    int64_t small = 0;
    for (const int64_t numbers : {1, 2, 3}) {
      small += 2 * 8 * numbers * (data - 1) / data;
    }
    if (steps > 0) { // before the first one, ranks see to their files
      EXPECT_EQ(step.bytes(), bytes_ + agreed_ + small);
    }
    step_ = counted_;
    bytes_ = 0;
    ++steps;
  }
  int steps = 0;

 private:
  /// AGREE sends each micro-batch's loss and one or two flags to all, and each chunk's sum of squares
  /// within the shard group.
  TrafficCount agreement(int flags) const {
    const Job& job = planned_.job;
    const Mesh& mesh = job.mesh();
    TrafficCount expected{1, (job.micro_batches() + flags) * 8 * int64_t{mesh.data() - 1}};
    if (mesh.shard > 1) {
      ++expected.calls;
      for (const int unit : job.trained_units(0)) {
        const int64_t shard = unit_layout(
                                  job.model().units[static_cast<size_t>(unit)].elements,
                                  true,
                                  mesh,
                                  job.placement(),
                                  job.reproducible())
                                  .shard;
        expected.bytes += (shard + kShardChunk - 1) / kShardChunk * 8 * (mesh.shard - 1);
      }
    }
    return expected;
  }

  const PlannedStep& planned_;
  const Traffic& counted_;
  Traffic begin_;
  Traffic step_;
  int64_t bytes_ = 0; // of the step's operations but AGREE
  int64_t agreed_ = 0;
};

struct Choice {
  int ranks;
  int zero;
  int replicate = 1;
  int accumulation = 1;
  bool reproducible = false;
  const char* policy = "none";
};

std::vector<Choice> choices() {
  std::vector<Choice> all;
  for (const int ranks : {2, 3}) {
    for (int zero = 0; zero <= 3; ++zero) {
      const int replicate = zero == 0 ? ranks : 1;
      all.push_back({ranks, zero, replicate, 1, false, "full"});
      all.push_back({ranks, zero, replicate, 3, ranks == 2, "none"});
    }
  }
  for (int zero = 1; zero <= 3; ++zero) {
    all.push_back({4, zero, 2, 2, false, "none"});
    all.push_back({4, zero, 2, 2, true, "full"});
  }
  return all;
}

std::vector<std::string> overrides(const Choice& choice) {
  std::vector<std::string> texts = {
      fmt::format("training.global_batch_size={}", choice.ranks * choice.accumulation),
      fmt::format("training.reproducible={}", choice.reproducible),
      fmt::format("parallel.zero={}", choice.zero),
      fmt::format("activation_checkpointing={}", choice.policy)};
  if (choice.zero > 0) {
    texts.push_back(fmt::format("parallel.replicate={}", choice.replicate));
  }
  return texts;
}

TEST(RunTraffic, EveryOperationSendsWhatThePlanSaysAndNothingElseDoes) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  for (const Choice& choice : choices()) {
    SCOPED_TRACE(fmt::format("{} ranks, {}", choice.ranks, fmt::join(overrides(choice), " ")));
    std::filesystem::remove_all(folder / "run");
    const auto body = [&](std::unique_ptr<Communicator> engine, MemoryContext&) {
      const auto traffic = std::make_shared<Traffic>();
      CountingCommunicator world(std::move(engine), traffic);
      Ranks ranks(world, {.ranks = choice.ranks, .threads = 1});
      palimpsest::Run run(testing::run_config(config, folder, overrides(choice)), ranks);
      run.prepare();
      EXPECT_EQ(run.micro_batches(), choice.accumulation);
      PlannedMessages messages(run.full_plan(), *traffic);
      run.train({&messages});
      EXPECT_EQ(messages.steps, 2);
    };
    testing::on_ranks(choice.ranks, body);
  }
}

/// What was issued and has not reached the other ranks.
class Held {
 public:
  struct Message {
    std::function<Ticket()> issue;
    std::optional<Ticket> ticket;
  };
  std::shared_ptr<Message> hold(std::function<Ticket()> issue) {
    messages_.push_back(std::make_shared<Message>(std::move(issue)));
    return messages_.back();
  }
  /// Returns how many there were.
  int send_all() {
    int sent = 0;
    while (!messages_.empty()) {
      const std::shared_ptr<Message> next = messages_.front();
      messages_.pop_front();
      next->ticket = next->issue();
      ++sent;
    }
    return sent;
  }
  int waited_for = 0; ///< before anything was computed

 private:
  std::deque<std::shared_ptr<Message>> messages_;
};

/// Sends nothing before it is told to, or somebody waits. All of a rank's groups hold together, so
/// that the order stays.
class HoldingCommunicator final : public Communicator {
 public:
  HoldingCommunicator(std::unique_ptr<Communicator> engine, std::shared_ptr<Held> held)
      : engine_(std::move(engine)), held_(std::move(held)) {}

  int rank() const override {
    return engine_->rank();
  }
  int size() const override {
    return engine_->size();
  }
  std::string description() const override {
    return engine_->description();
  }
  Ticket all_gather(const at::Tensor& mine, const at::Tensor& whole) override {
    return hold([=, this] { return engine_->all_gather(mine, whole); });
  }
  Ticket reduce_scatter(const at::Tensor& whole, const at::Tensor& mine) override {
    return hold([=, this] { return engine_->reduce_scatter(whole, mine); });
  }
  Ticket all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return hold([=, this] { return engine_->all_reduce(tensor, op); });
  }
  Ticket broadcast(const at::Tensor& tensor, int root) override {
    return hold([=, this] { return engine_->broadcast(tensor, root); });
  }
  Ticket send(const at::Tensor& tensor, int peer) override {
    return hold([=, this] { return engine_->send(tensor, peer); });
  }
  Ticket receive(const at::Tensor& tensor, int peer) override {
    return hold([=, this] { return engine_->receive(tensor, peer); });
  }
  Ticket barrier() override {
    return hold([this] { return engine_->barrier(); });
  }
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override {
    held_->send_all();
    return std::make_unique<HoldingCommunicator>(engine_->split(color, key, name), held_);
  }
  void abort(const std::string& reason) noexcept override {
    engine_->abort(reason);
  }

 private:
  class HeldAction final : public Ticket::Action {
   public:
    HeldAction(std::shared_ptr<Held> held, std::shared_ptr<Held::Message> message)
        : held_(std::move(held)), message_(std::move(message)) {}
    bool done() override {
      return message_->ticket && message_->ticket->done();
    }
    void wait() override {
      if (!message_->ticket) {
        ++held_->waited_for;
        held_->send_all();
      }
      message_->ticket->wait();
    }

   private:
    std::shared_ptr<Held> held_;
    std::shared_ptr<Held::Message> message_;
  };

  Ticket hold(std::function<Ticket()> issue) {
    return Ticket(std::make_unique<HeldAction>(held_, held_->hold(std::move(issue))));
  }

  std::unique_ptr<Communicator> engine_;
  std::shared_ptr<Held> held_;
};

/// Lets messages go when a computation has ended that began after they were issued.
class SendAfterComputing final : public Observer {
 public:
  explicit SendAfterComputing(Held& held) : held_(held) {}
  void op_begin(size_t, const Op&) override {
    waited_before_ = held_.waited_for;
  }
  void op_end(size_t, const Op& op) override {
    if (is_compute(op.kind)) {
      waited_in_compute += held_.waited_for - waited_before_;
      hidden += held_.send_all();
    }
  }
  int waited_in_compute = 0; ///< messages whose operands a computation needed at once
  int hidden = 0; ///< messages during which something was computed

 private:
  Held& held_;
  int waited_before_ = 0;
};

/// GATHERs whose unit the very next computation reads, and REDUCEs and GATHERs that have a
/// computation behind them which does not need them.
struct Overlap {
  int needed_at_once = 0;
  int may_hide = 0;
};

Overlap planned_overlap(const PlannedStep& planned) {
  Overlap found;
  std::vector<int> gathered; // since the last computation
  int reduced = 0;
  std::vector<Effect> table;
  for (const Op& op : planned.plan) {
    if (op.kind == OpKind::kGather) {
      gathered.push_back(op.unit);
    } else if (op.kind == OpKind::kReduce) {
      ++reduced;
    } else if (is_compute(op.kind)) {
      effects(op, planned.job, table);
      const auto reads = [&](int unit) {
        return std::ranges::any_of(table, [unit](const Effect& effect) {
          return effect.place.slot == Slot{SlotKind::kParam, unit};
        });
      };
      const auto needed = static_cast<int>(std::ranges::count_if(gathered, reads));
      found.needed_at_once += needed;
      // Waiting for one sends all that was issued.
      found.may_hide += needed > 0 ? 0 : static_cast<int>(gathered.size()) + reduced;
      gathered.clear();
      reduced = 0;
    }
  }
  return found;
}

// No time is measured: a message leaves only when a computation that began after its issue has
// ended. What is still waited for before that is what the plan could not issue earlier.
TEST(RunTraffic, MessagesTravelWhileSomethingIsComputed) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> same = {
      "training.global_batch_size=4", "training.reproducible=true"};
  const Finished plain = testing::train(config, folder, same);
  for (const auto& [zero, prefetch] :
       {std::pair(0, "auto"), std::pair(2, "auto"), std::pair(3, "auto"), std::pair(3, "0")}) {
    SCOPED_TRACE(fmt::format("zero {}, prefetch {}", zero, prefetch));
    std::vector<std::string> all = same;
    all.push_back(fmt::format("parallel.zero={}", zero));
    all.push_back(fmt::format("parallel.prefetch={}", prefetch));
    std::filesystem::remove_all(folder / "run");
    std::mutex mutex;
    std::map<std::string, std::vector<float>> parameters;
    const auto body = [&](std::unique_ptr<Communicator> engine, MemoryContext&) {
      const auto held = std::make_shared<Held>();
      HoldingCommunicator world(std::move(engine), held);
      Ranks ranks(world, {.ranks = 2, .threads = 1});
      palimpsest::Run run(testing::run_config(config, folder, all), ranks);
      run.prepare();
      SendAfterComputing sending(*held);
      run.train({&sending});
      const Overlap planned = planned_overlap(run.full_plan());
      EXPECT_EQ(sending.waited_in_compute, 2 * planned.needed_at_once); // in 2 steps
      EXPECT_EQ(sending.hidden, 2 * planned.may_hide);
      const auto of_kind = [&](OpKind kind) {
        return std::ranges::count(run.full_plan().plan, kind, &Op::kind);
      };
      const auto gathers = static_cast<int>(of_kind(OpKind::kGather));
      const auto messages = gathers + static_cast<int>(of_kind(OpKind::kReduce));
      if (std::string(prefetch) == "0") { // each block asks for its parameters when it begins
        EXPECT_EQ(planned.needed_at_once, gathers);
      } else { // all but the step's last gradient, and the parameters of its first window of three
        EXPECT_EQ(planned.needed_at_once, zero == 3 ? 1 : 0);
        EXPECT_EQ(planned.may_hide, messages - 1 - (zero == 3 ? 3 : 0));
      }
      const std::lock_guard lock(mutex);
      testing::add_parameters(run, parameters);
    };
    testing::on_ranks(2, body);
    EXPECT_EQ(parameters, plain.parameters);
  }
}

} // namespace
} // namespace palimpsest
