// Memory that runs out in the middle of a step: the step runs again with the same bits, or the run
// ends with a message; nobody hangs.

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <ATen/ops/empty.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <atomic>
#include <cstdlib>
#include <optional>
#include <random>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::Records;
using testing::TestFolder;

std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 32 * 17, 3);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 32, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 88, vocab_size: 256, dropout: 0.1}}
data: {{files: [{}], format: text, sequence_length: 16}}
training: {{steps: 2, threads: 1, reproducible: true}}
optimizer: {{learning_rate: 1e-3, max_grad_norm: 1}}
)",
      folder / "text.txt");
}

bool every_case() {
  return std::getenv("PALIMPSEST_FULL") != nullptr;
}

/// Counts allocations from the first operation of a plan to the last one before UPDATEs.
class CountInStep final : public Observer {
 public:
  explicit CountInStep(MemoryContext& memory) : memory_(memory) {}
  void op_begin(size_t index, const Op& op) override {
    if (index == 0) {
      begin = memory_.total().allocations;
      updates_ = 0;
    }
    if (op.kind == OpKind::kUpdate && updates_++ == 0) {
      end = memory_.total().allocations;
    }
  }
  void op_end(size_t, const Op& op) override {
    if (op.kind == OpKind::kCommit) {
      after = memory_.total().allocations - end;
    }
  }
  int64_t begin = 0;
  int64_t end = 0;
  int64_t after = 0; // from the last step's first UPDATE to its end

 private:
  MemoryContext& memory_;
  int updates_ = 0;
};

/// Lets the k-th allocation of the step's plan fail.
class FailInStep final : public Observer {
 public:
  FailInStep(MemoryContext& memory, int64_t k) : memory_(memory), k_(k) {}
  void op_begin(size_t index, const Op&) override {
    if (index == 0 && !armed_) {
      armed_ = true;
      memory_.set_allocation_hook(fail_at_allocation(k_));
    }
  }
  void step_end(const StepRecord&) override {
    memory_.set_allocation_hook({});
  }

 private:
  MemoryContext& memory_;
  int64_t k_;
  bool armed_ = false;
};

class Notes final : public Observer {
 public:
  void note(const std::string& text) override {
    all += text + "\n";
  }
  std::string all;
};

struct Disturbed {
  Finished finished;
  int64_t allocations = 0; // of a step's plan before its UPDATEs
  int64_t after = 0; // and from there on
  std::string told;
};

/// Trains anew; the `k`-th allocation of the first step's plan fails, none where k is 0.
Disturbed train(
    const std::string& config,
    const TestFolder& folder,
    const std::vector<std::string>& overrides,
    int64_t k) {
  Disturbed result;
  std::filesystem::remove_all(folder / "run");
  Run run(testing::run_config(config, folder, overrides));
  run.prepare();
  FailInStep fail(run.memory(), k);
  CountInStep counter(run.memory());
  Notes notes;
  run.train({&result.finished.records, &notes, &counter, &fail});
  testing::add_parameters(run, result.finished.parameters);
  result.allocations = counter.end - counter.begin;
  result.after = counter.after;
  result.told = notes.all;
  return result;
}

TEST(Exhaustion, AnyAllocationOfAStepMayFailAndTheStepRunsAgainWithTheSameBits) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  for (const char* policy : {"none", "full"}) {
    const std::vector<std::string> overrides = {
        "training.global_batch_size=4",
        "training.micro_batch_size=2",
        fmt::format("activation_checkpointing={}", policy)};
    const Disturbed undisturbed = train(config, folder, overrides, 0);
    EXPECT_EQ(undisturbed.told, "");
    ASSERT_GT(undisturbed.allocations, 100);
    for (int64_t k = 1; k <= undisturbed.allocations; k += every_case() ? 1 : 13) {
      SCOPED_TRACE(fmt::format("{}, allocation {} of {}", policy, k, undisturbed.allocations));
      const Disturbed found = train(config, folder, overrides, k);
      EXPECT_EQ(found.finished.records.losses(), undisturbed.finished.records.losses());
      EXPECT_EQ(found.finished.records.norms(), undisturbed.finished.records.norms());
      EXPECT_EQ(found.finished.parameters, undisturbed.finished.parameters);
      EXPECT_THAT(
          found.told, AllOf(HasSubstr("out of memory in "), HasSubstr("the step runs again")));
    }
  }
}

// What changes something persistent needs no memory, so it cannot be left half done.
TEST(Exhaustion, NothingIsAllocatedAfterTheRanksHaveAgreed) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  for (const std::string& precision : testing::kPrecisions) {
    const Disturbed run =
        train(config, folder, {"training.global_batch_size=2", "precision=" + precision}, 0);
    EXPECT_GT(run.allocations, 100) << precision;
    EXPECT_EQ(run.after, 0) << precision;
  }
}

/// Asks for memory between steps that nobody has.
class AskBetweenSteps final : public Observer {
 public:
  explicit AskBetweenSteps(MemoryContext& memory) : memory_(memory) {}
  void step_end(const StepRecord&) override {
    memory_.set_allocation_hook(fail_at_allocation(1));
    at::empty({1 << 20}, at::kByte);
  }

 private:
  MemoryContext& memory_;
};

// Outside of any plan there is nothing to run again: the message has bytes, phase and holders.
TEST(Exhaustion, BetweenStepsItIsNamed) {
  const TestFolder folder;
  palimpsest::Run run(testing::run_config(yaml(folder), folder, {"training.global_batch_size=4"}));
  run.prepare();
  AskBetweenSteps ask(run.memory());
  EXPECT_THAT(
      [&] { run.train({&ask}); },
      ::testing::ThrowsMessage<EnvironmentError>(AllOf(
          HasSubstr("out of memory while training, outside of a step's plan: 1.00 MiB wanted, "),
          HasSubstr(" held: optimizer "),
          HasSubstr(", parameters "))));
}

TEST(Exhaustion, OneRankOutOfMemoryMakesAllRunTheStepAgain) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  std::mt19937 random(7);
  std::map<std::pair<int, std::string>, Finished> references;
  const int tries = every_case() ? 100 : 12;
  for (int number = 0; number < tries; ++number) {
    const int count = 2 + static_cast<int>(random() % 3);
    const int victim = static_cast<int>(random() % static_cast<uint32_t>(count));
    const int64_t k = 1 + static_cast<int64_t>(random() % 150);
    // A step that runs again counts once for the scale of fp16's loss too.
    const std::string precision = testing::kPrecisions[number % 2 == 0 ? 3 : 0];
    const std::vector<std::string> overrides = {
        fmt::format("training.global_batch_size={}", 2 * count),
        "training.micro_batch_size=1",
        "activation_checkpointing=full",
        "parallel.zero=3",
        "precision=" + precision,
        fmt::format("parallel.check_operations={}", number % 4 == 0)};
    if (!references.contains({count, precision})) {
      references[{count, precision}] = testing::train_on(count, config, folder, overrides);
    }
    const Finished& undisturbed = references.at({count, precision});
    SCOPED_TRACE(fmt::format("{} ranks, allocation {} of rank {}", count, k, victim));
    std::filesystem::remove_all(folder / "run");
    Finished found;
    std::mutex mutex;
    testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
      Ranks ranks(world, {.ranks = count, .threads = 1});
      palimpsest::Run run(testing::run_config(config, folder, overrides), ranks);
      run.prepare();
      Records records;
      FailInStep fail(run.memory(), ranks.rank() == victim ? k : 0);
      run.train({&records, &fail});
      const std::lock_guard lock(mutex);
      testing::add_parameters(run, found.parameters);
      if (ranks.leads()) {
        found.records = std::move(records);
      }
    });
    EXPECT_EQ(found.records.losses(), undisturbed.records.losses());
    EXPECT_EQ(found.records.norms(), undisturbed.records.norms());
    EXPECT_EQ(found.parameters, undisturbed.parameters);
    for (size_t step = 0; step < found.records.all.size(); ++step) {
      EXPECT_EQ(found.records.all[step].loss_scale, undisturbed.records.all[step].loss_scale);
    }
  }
}

} // namespace
} // namespace palimpsest
