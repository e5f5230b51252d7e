// What only torchrun's own agent does: its store, its restarts.

#include <palimpsest/tests/launcher/program/program_testing.h>

#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using testing::kPatience;
using testing::Starter;
using testing::Words;

class Torchrun : public testing::ProgramRanks {
 protected:
  void SetUp() override {
    ProgramRanks::SetUp();
    if (const std::string reason = testing::missing(Starter::kTorchrun); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

// The agent shares its store with the ranks, unless it is told not to: then rank 0 holds one.
TEST_F(Torchrun, RanksMeetAtTheAgentsStoreOrTheirOwn) {
  Words command = {
      "/bin/sh", "-c", "echo agent_store=$TORCHELASTIC_USE_AGENT_STORE; exec \"$@\"", "sh"};
  const Words program = train_command(golden_config("llama-tiny"));
  command.insert(command.end(), program.begin(), program.end());
  for (const auto& [disabled, told] : {std::pair("0", "True"), std::pair("1", "False")}) {
    std::filesystem::remove_all(output());
    const pid_t process = start(
        on_ranks(Starter::kTorchrun, 2, command),
        {{"TORCH_DISABLE_SHARE_RDZV_TCP_STORE", disabled}});
    EXPECT_EQ(wait_for(process, kPatience), 0) << out() << err();
    EXPECT_THAT(out(), HasSubstr(std::string("agent_store=") + told));
    EXPECT_EQ(metrics().size(), 3U);
  }
}

// The agent starts all ranks again at the same store: they meet under other keys, and go on from the
// newest checkpoint.
TEST_F(Torchrun, AKilledRankIsStartedAgainAndTheRunGoesOn) {
  constexpr size_t kSteps = 200;
  const Words program = train_command(
      golden_config("llama-tiny"),
      {"training.steps=" + std::to_string(kSteps),
       "checkpoint.save_every=20",
       "checkpoint.keep_last=2"});
  Words command = on_ranks(Starter::kTorchrun, 2, program);
  command.insert(command.begin() + 2, "--max-restarts=1");
  const pid_t process = start(command);
  ASSERT_TRUE(testing::eventually(kPatience, [&] { return metrics().size() > 20; })) << err();
  const pid_t victim = rank_process(1);
  ASSERT_GT(victim, 0);
  kill(victim, SIGKILL);
  ASSERT_LT(metrics().size(), kSteps) << "it was killed too late";
  EXPECT_EQ(wait_for(process, kPatience), 0) << out() << err();
  const auto records = metrics();
  ASSERT_EQ(records.size(), kSteps);
  for (size_t step = 0; step < kSteps; ++step) {
    ASSERT_EQ(records[step]["step"], step + 1);
  }
}

} // namespace
} // namespace palimpsest
