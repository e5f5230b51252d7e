// Covers: launcher/compose/monitor.cc
// Plans that follow what a run measures: for a faster step, for less free memory, and no more often.

#include <palimpsest/launcher/compose/monitor.h>
#include <palimpsest/tests/launcher/run/run_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <limits>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TestFolder;

class Notes final : public Observer {
 public:
  void note(const std::string& text) override {
    all.push_back(text);
  }
  std::vector<std::string> all;
};

class Monitors : public ::testing::Test {
 protected:
  Monitors() {
    testing::write_letters(folder_ / "text.txt", 64 * 33, 3);
    const std::string yaml = fmt::format(
        R"(model: {{family: llama, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 176, vocab_size: 256}}
data: {{files: [{}], format: text, sequence_length: 32}}
training: {{steps: 2, global_batch_size: 4, micro_batch_size: 4, threads: 1}}
optimizer: {{learning_rate: 1e-3}}
memory: {{device_budget: 4GiB}}
activation_checkpointing: auto
)",
        folder_ / "text.txt");
    run_.emplace(testing::run_config(yaml, folder_, {}));
  }

  /// Lets a monitor see `count` steps in which operation i took seconds[i]; none: nothing is traced.
  void steps(Monitor& monitor, int count) {
    for (int step = 1; step <= count; ++step) {
      monitor.step_end({.step = step});
    }
  }
  std::string policy() {
    return run_->plans().choice(run_->micro_batches()).policy;
  }
  int64_t peak() {
    return run_->full_report().peak(TierId::kDevice);
  }

  TestFolder folder_;
  std::optional<palimpsest::Run> run_;
  Ranks ranks_;
  Notes notes_;
  std::vector<Observer*> observers_ = {&notes_};
};

TEST_F(Monitors, ChangesNothingWhereNothingChanged) {
  Monitor monitor(ranks_, run_->plans(), run_->memory(), {.micro_batches = 1}, observers_);
  const std::string before = policy();
  steps(monitor, 400);
  EXPECT_THAT(notes_.all, IsEmpty());
  EXPECT_EQ(policy(), before);
}

// Half of what the plan wants is gone: one note, one tighter plan; when it comes back, nothing.
TEST_F(Monitors, LessFreeMemoryMakesATighterPlanOnce) {
  const int64_t promised = peak();
  int64_t available = std::numeric_limits<int64_t>::max() / 4;
  Monitor monitor(
      ranks_,
      run_->plans(),
      run_->memory(),
      {.micro_batches = 1, .watch_memory = true, .available = [&] { return available; }},
      observers_);
  steps(monitor, 5);
  EXPECT_THAT(notes_.all, IsEmpty());
  const int64_t live = run_->memory().total().live;
  available = promised * 9 / 10 - live;
  steps(monitor, 10);
  EXPECT_THAT(notes_.all, ElementsAre(HasSubstr("planned anew")));
  EXPECT_LE(peak(), live + available);
  const int64_t tight = peak();
  available = std::numeric_limits<int64_t>::max() / 4;
  steps(monitor, 1000);
  EXPECT_EQ(notes_.all.size(), 1U);
  EXPECT_EQ(peak(), tight);
}

// Within a budget that one of two decisions fits into, the faster one by measured seconds is taken:
// a cost that rises by a hundredth is no reason, one block's that rises a hundredfold is.
TEST_F(Monitors, ABookTakesAnotherPlanOnlyWhereItIsClearlyFaster) {
  PlanBook& book = run_->plans();
  ASSERT_TRUE(book.tighten(1, peak() / 10)); // some of the blocks run again
  const Segments present = book.choice(1).segments;
  ASSERT_FALSE(present.empty());
  ModelCost cost = book.cost();
  EXPECT_FALSE(book.refine(1, cost));
  for (BlockCost& block : cost.blocks) {
    block.forward_seconds *= 1.01;
  }
  EXPECT_FALSE(book.refine(1, cost));
  EXPECT_EQ(book.choice(1).segments, present);
  bool slowed = false;
  for (const Segment& segment : present) { // one of those that run again turns out to be slow
    if (segment.tape == TapeMode::kNone && !slowed) {
      cost.blocks[static_cast<size_t>(segment.blocks.begin)].forward_seconds *= 100;
      slowed = true;
    }
  }
  ASSERT_TRUE(slowed);
  const double kept = [&] {
    ModelCost slow = cost;
    PlanBook other(run_->config(), slow, {}, {}, {.bytes = book.budget()});
    return other.report_with(1, present).seconds;
  }();
  EXPECT_TRUE(book.refine(1, cost));
  EXPECT_NE(book.choice(1).segments, present);
  EXPECT_LT(book.report(1).seconds, 0.95 * kept);
}

} // namespace
} // namespace palimpsest
