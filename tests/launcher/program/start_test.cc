// Before the first step: requests to stop, and a rank that hangs.

#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/tests/launcher/program/program_testing.h>

#include <gmock/gmock.h>

#include <unistd.h>

#include <sstream>
namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using namespace std::chrono_literals;
using testing::kPatience;
using testing::Starter;

class Starts : public testing::ProgramRanks {
 protected:
  /// Two samples of so many tokens that their blocks are measured for half a minute.
  std::string long_config() const {
    std::ofstream(folder_ / "text.txt") << std::string(2 * kLength, 'a');
    std::ofstream(folder_ / "run.yaml")
        << "model: {family: llama, vocab_size: 256, hidden_size: 64, num_hidden_layers: 1, "
           "num_attention_heads: 2, intermediate_size: 64, max_position_embeddings: "
        << kLength << "}\n"
        << "data: {files: [" << (folder_ / "text.txt").string()
        << "], format: text, sequence_length: " << kLength << "}\n"
        << "training: {steps: 1, global_batch_size: 2, micro_batch_size: 1, threads: 1}\n"
        << "optimizer: {learning_rate: 1e-3}\n";
    return (folder_ / "run.yaml").string();
  }

  /// Whether the process has computed for a while: it opens such a run in a fraction of that.
  static bool measures(pid_t process) {
    std::istringstream stat(testing::text_of("/proc/" + std::to_string(process) + "/stat"));
    std::string word;
    int64_t ticks = 0;
    for (int field = 1; field <= 14 && stat >> word; ++field) {
      ticks = field == 14 ? std::stoll(word) : 0;
    }
    return ticks > 3 * sysconf(_SC_CLK_TCK) / 2;
  }

  void expect_nothing_was_begun() const {
    EXPECT_THAT(
        out(),
        HasSubstr("stopped as asked before another step was done; the same command goes on"));
    EXPECT_FALSE(std::filesystem::exists(output() / "run.json"));
    EXPECT_FALSE(std::filesystem::exists(output() / "metrics.jsonl"));
  }

  static constexpr int kLength = 24'000;
};

TEST_F(Starts, ARequestToStopEndsTheMeasuring) {
  for (const int signal : {SIGTERM, SIGINT}) {
    const pid_t process = start(train_command(long_config()));
    ASSERT_TRUE(testing::eventually(kPatience, [&] { return measures(process); })) << err();
    kill(process, signal);
    EXPECT_EQ(wait_for(process, kPatience), kStoppedExitCode) << out() << err();
    expect_nothing_was_begun();
    EXPECT_FALSE(std::filesystem::exists(output()));
  }
}

// To the launcher, which asks all, and to one rank alone.
TEST_F(Starts, ARequestToStopEndsTheMeasuringOfAllRanks) {
  for (const Starter starter : {Starter::kLaunch, Starter::kVariables}) {
    SCOPED_TRACE(name_of(starter));
    const pid_t process = train(starter, 2, long_config());
    const auto all_measure = [&] {
      return rank_process(0) > 0 && measures(rank_process(0)) && rank_process(1) > 0 &&
          measures(rank_process(1));
    };
    ASSERT_TRUE(testing::eventually(kPatience, all_measure)) << err();
    kill(starter == Starter::kLaunch ? process : rank_process(1), SIGTERM);
    EXPECT_EQ(wait_for(process, kPatience), kStoppedExitCode) << out() << err();
    EXPECT_TRUE(all_gone(5s));
    expect_nothing_was_begun();
  }
}

// Long before it is measured: what it does is reading.
TEST_F(Starts, ARankThatHangsWhileItReadsIsNamedSo) {
  const std::string config = two_records();
  const pid_t process = train(
      Starter::kLaunchWithoutMpirun,
      2,
      config,
      {},
      {{"LD_PRELOAD", PALIMPSEST_SLOW_DISK},
       {"PALIMPSEST_SLOW_RANK", "1"},
       {"PALIMPSEST_SLOW_FILE", "records.jsonl"},
       {"PALIMPSEST_SLOW_MILLISECONDS", "60000"},
       {"ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0"}});
  ASSERT_TRUE(testing::eventually(kPatience, [&] { return rank_process(1) > 0; })) << err();
  std::this_thread::sleep_for(5s); // until it waits for its file
  kill(rank_process(1), SIGSTOP);
  EXPECT_EQ(wait_for(process, 50s), 1) << out() << err();
  EXPECT_THAT(err(), HasSubstr("rank 1 gives no sign of life"));
  EXPECT_THAT(err(), HasSubstr("in declared long work: reading model and data"));
  EXPECT_THAT(err(), Not(HasSubstr("measuring")));
  EXPECT_TRUE(all_gone(10s));
}

} // namespace
} // namespace palimpsest
