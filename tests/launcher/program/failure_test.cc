// Ranks that die or hang, requests to stop, and what goes on from there.

#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/tests/launcher/program/program_testing.h>

#include <gmock/gmock.h>

#include <random>
#include <span>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using testing::kPatience;
using testing::Starter;
using testing::usable;
using testing::Words;

const std::vector<Starter> kLaunchers =
    {Starter::kLaunch, Starter::kLaunchWithoutMpirun, Starter::kMpirun, Starter::kTorchrun};

using Failure = testing::ProgramRanks;

TEST_F(Failure, AKilledRankEndsAllWithItsCode) {
  std::mt19937 random(11);
  const std::vector<Starter> starters = usable(kLaunchers);
  const size_t rounds = testing::full_tests() ? 100 : starters.size();
  for (size_t round = 0; round < rounds; ++round) {
    const Starter starter = starters[round % starters.size()];
    SCOPED_TRACE(name_of(starter) + ", round " + std::to_string(round));
    const int ranks = 2 + static_cast<int>(random() % 2);
    const int victim = static_cast<int>(random() % static_cast<unsigned>(ranks));
    std::filesystem::remove_all(output());
    const pid_t process = start_long_run(starter, ranks);
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 50));
    const pid_t rank = rank_process(victim);
    ASSERT_GT(rank, 0);
    kill(rank, SIGKILL);
    EXPECT_EQ(wait_for(process, 10s), code_of_job(starter, 137)) << "rank " << victim;
    EXPECT_TRUE(all_gone(10s));
    EXPECT_THAT(err() + out(), HasSubstr("rank " + std::to_string(victim)));
  }
}

// Started as torchrun starts them, by a shell that lets the others go on: they end by themselves.
TEST_F(Failure, RanksWithoutALauncherEndAfterOneOfThem) {
  const pid_t process = start_long_run(Starter::kVariables, 3);
  kill(rank_process(1), SIGKILL);
  const std::optional<int> code = wait_for(process, 10s);
  ASSERT_TRUE(code.has_value());
  EXPECT_NE(*code, 0);
  EXPECT_THAT(err(), HasSubstr("rank 1"));
}

TEST_F(Failure, ASignalToOneRankAloneStopsAll) {
  const pid_t process = start_long_run(Starter::kVariables, 3);
  kill(rank_process(2), SIGTERM);
  EXPECT_EQ(wait_for(process, 20s), kStoppedExitCode) << err();
  const std::string last = std::to_string(metrics().size());
  EXPECT_THAT(out(), HasSubstr("stopped after step " + last));
}

// In a long evaluation it is not lost: all drop that, and stop after the step that was done.
TEST_F(Failure, ASignalToOneRankInAnEvaluationStopsAllInIt) {
  std::ofstream(folder_ / "text.txt") << std::string(2000, 'a');
  std::ofstream(folder_ / "held-out.txt") << std::string(400'000, 'b');
  std::ofstream(folder_ / "run.yaml")
      << "model: {family: llama, vocab_size: 256, hidden_size: 16, num_hidden_layers: 1, "
         "num_attention_heads: 2, intermediate_size: 32}\n"
      << "data: {files: [" << (folder_ / "text.txt").string() << "], format: text, "
      << "sequence_length: 64, validation: {files: [" << (folder_ / "held-out.txt").string()
      << "]}}\n"
      << "training: {steps: 8, global_batch_size: 2, micro_batch_size: 1, threads: 1}\n"
      << "optimizer: {learning_rate: 1e-3}\n"
      << "evaluation: {every: 1}\n";
  const pid_t process = train(Starter::kVariables, 2, (folder_ / "run.yaml").string());
  ASSERT_TRUE(testing::eventually(kPatience, [&] { return metrics().size() == 1; })) << err();
  kill(rank_process(1), SIGTERM);
  EXPECT_EQ(metrics().size(), 1U) << "the signal came too late";
  EXPECT_EQ(wait_for(process, kPatience), kStoppedExitCode) << out() << err();
  EXPECT_THAT(out(), HasSubstr("stopped after step 1"));
  EXPECT_THAT(out() + err(), HasSubstr("the evaluation after step 1 is dropped"));
  EXPECT_EQ(metrics().size(), 1U);
  EXPECT_TRUE(std::filesystem::exists(output() / "step-00000001"));
}

// The samples of the fifth step are numbers 16 to 19, of which 18 is rank 2's: all end there
// with the same words, and the two steps before it stay saved.
TEST_F(Failure, ANumberThatIsNotFiniteOnOneRankEndsAllAtItsStep) {
  SafetensorsWriter writer(
      folder_ / "data.safetensors",
      {{"inputs", StoredDtype::F32, {32, 3}}, {"targets", StoredDtype::F32, {32, 1}}});
  for (const StoredTensor& tensor : writer.tensors()) {
    std::vector<float> numbers(static_cast<size_t>(tensor.elements()), 0.5F);
    if (tensor.name == "inputs") {
      numbers[3 * 18] = 3e38F; // overflows in the model
    }
    writer.write(tensor.name, std::as_bytes(std::span(numbers)));
  }
  writer.commit();
  std::ofstream(folder_ / "run.yaml")
      << "model: {family: mlp, input_size: 3, output_size: 1, hidden_size: 5, "
         "num_hidden_layers: 2}\n"
      << "data: {files: [" << (folder_ / "data.safetensors").string() << "], shuffle: false}\n"
      << "training: {steps: 8, global_batch_size: 4, micro_batch_size: 1, threads: 1, "
         "max_skipped_steps: 0}\n"
      << "optimizer: {learning_rate: 1e-3}\n"
      << "checkpoint: {save_every: 1, keep_last: 2}\n";
  const pid_t process = train(Starter::kLaunchWithoutMpirun, 4, (folder_ / "run.yaml").string());
  ASSERT_TRUE(testing::eventually(kPatience, [&] { return metrics().size() >= 4; })) << err();
  EXPECT_EQ(wait_for(process, 10s), 1);
  EXPECT_TRUE(all_gone(5s));
  EXPECT_THAT(err(), HasSubstr("step 5: "));
  EXPECT_EQ(err().find("step 5: "), err().rfind("step 5: ")) << err();
  for (int step = 1; step <= 5; ++step) {
    const bool kept = std::filesystem::exists(output() / ("step-0000000" + std::to_string(step)));
    EXPECT_EQ(kept, step == 3 || step == 4) << step;
  }
}

// Long work before the first step is waited for however short the time for an operation is, here
// records that one rank alone is slow to read.
TEST_F(Failure, ASlowReaderIsWaitedFor) {
  const auto delay = 2500ms;
  const std::string config = two_records();
  for (const int slow : {0, 1}) {
    std::filesystem::remove_all(output());
    const auto begin = std::chrono::steady_clock::now();
    const pid_t process = train(
        Starter::kLaunchWithoutMpirun,
        2,
        config,
        {},
        {{"LD_PRELOAD", PALIMPSEST_SLOW_DISK},
         {"PALIMPSEST_SLOW_RANK", std::to_string(slow)},
         {"PALIMPSEST_SLOW_FILE", "records.jsonl"},
         {"PALIMPSEST_SLOW_MILLISECONDS", std::to_string(delay.count())},
         {"ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0"}});
    EXPECT_EQ(wait_for(process, kPatience), 0) << "rank " << slow << out() << err();
    EXPECT_GT(std::chrono::steady_clock::now() - begin, delay);
    EXPECT_EQ(metrics().size(), 1U);
  }
}

TEST_F(Failure, AKilledLauncherTakesItsRanksAlong) {
  for (const Starter starter : usable(kLaunchers)) {
    SCOPED_TRACE(name_of(starter));
    std::filesystem::remove_all(output());
    const pid_t process = start_long_run(starter, 2);
    kill(process, SIGKILL);
    EXPECT_EQ(wait_for(process), 137);
    EXPECT_TRUE(all_gone(10s));
  }
}

// A stopped process lives and does nothing: after the time for an operation it is named. torchrun
// asks it to end, and kills it 30 s later.
TEST_F(Failure, AHungRankIsNamedAtTheTimeout) {
  std::vector<Starter> starters = {Starter::kLaunch, Starter::kLaunchWithoutMpirun};
  if (testing::full_tests()) {
    starters = usable(kLaunchers);
  }
  for (const Starter starter : starters) {
    SCOPED_TRACE(name_of(starter));
    std::filesystem::remove_all(output());
    const pid_t process = start_long_run(starter, 3, {"parallel.timeout=2"});
    const pid_t hung = rank_process(1);
    ASSERT_GT(hung, 0);
    kill(hung, SIGSTOP);
    EXPECT_EQ(wait_for(process, starter == Starter::kTorchrun ? 50s : 20s), 1);
    EXPECT_THAT(err(), HasSubstr("rank 1 gives no sign of life"));
    EXPECT_TRUE(all_gone(10s));
  }
}

// One signal to the launcher is one decision of all ranks: a checkpoint, a code that says "again",
// and the same command goes on.
TEST_F(Failure, ARequestToStopSavesAndTheRunGoesOn) {
  for (const Starter starter : usable(kLaunchers)) {
    SCOPED_TRACE(name_of(starter));
    std::filesystem::remove_all(output());
    const pid_t process = start_long_run(starter, 2);
    kill(process, starter == Starter::kMpirun ? SIGUSR1 : SIGTERM);
    EXPECT_EQ(wait_for(process, 20s), code_of_job(starter, kStoppedExitCode)) << out() << err();
    EXPECT_TRUE(all_gone(5s));
    const size_t done = metrics().size();
    EXPECT_THAT(out(), HasSubstr("stopped after step " + std::to_string(done)));
    const std::string steps = "training.steps=" + std::to_string(done + 2);
    const pid_t rest =
        train(starter, 2, (folder_ / "run.yaml").string(), {steps, "training.global_batch_size=6"});
    EXPECT_EQ(wait_for(rest, kPatience), 0) << out() << err();
    EXPECT_EQ(metrics().size(), done + 2);
    EXPECT_THAT(out(), HasSubstr("step-")); // it says where it goes on from
  }
}

// Every step is saved, so a kill mostly meets a save; what is left goes on, and the steps done are
// those of a run that was never killed.
TEST_F(Failure, AKillInASaveLeavesACheckpointThatResumes) {
  std::mt19937 random(3);
  const int rounds = testing::full_tests() ? 60 : 3;
  const std::string config = golden_config("llama-tiny");
  const Words every = {"checkpoint.save_every=1", "checkpoint.keep_last=2", "parallel.zero=2"};
  const auto with_steps = [&](int64_t steps) {
    Words overrides = every;
    overrides.push_back("training.steps=" + std::to_string(steps));
    return overrides;
  };
  size_t done = 0;
  for (int round = 0; round < rounds; ++round) {
    const pid_t process = train(Starter::kLaunchWithoutMpirun, 2, config, with_steps(1000000));
    ASSERT_TRUE(testing::eventually(kPatience, [&] { return metrics().size() > done + 1; }))
        << err();
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 40));
    kill(rank_process(static_cast<int>(random() % 2)), SIGKILL);
    EXPECT_EQ(wait_for(process, 10s), 137);
    const auto records = metrics();
    for (size_t step = 0; step < records.size(); ++step) { // no step twice, none left out
      ASSERT_TRUE(records[step].is_object() || step + 1 == records.size());
      if (records[step].is_object()) {
        ASSERT_EQ(records[step]["step"], step + 1) << "round " << round;
      }
    }
    ASSERT_GE(records.size(), done); // it went on from what the last round left
    done = records.size();
  }
  const auto steps = static_cast<int64_t>(done) + 2;
  EXPECT_EQ(wait_for(train(Starter::kLaunch, 2, config, with_steps(steps)), kPatience), 0) << err();
  const auto killed = metrics();
  std::filesystem::remove_all(output());
  EXPECT_EQ(wait_for(train(Starter::kLaunch, 2, config, with_steps(steps)), kPatience), 0) << err();
  const auto straight = metrics();
  ASSERT_EQ(killed.size(), straight.size());
  for (size_t step = 0; step < killed.size(); ++step) {
    EXPECT_EQ(killed[step]["loss"], straight[step]["loss"]) << step;
    EXPECT_EQ(killed[step]["grad_norm"], straight[step]["grad_norm"]) << step;
  }
}

class StartsAndEnds : public testing::ProgramRanks,
                      public ::testing::WithParamInterface<Starter> {};

// Each fifth job is one that must fail.
TEST_P(StartsAndEnds, ManyTimes) {
  const Starter starter = GetParam();
  if (const std::string reason = missing(starter); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const int rounds = testing::full_tests() ? 50 : 2;
  const std::string config = golden_config("llama-tiny");
  const Words unreadable = {"data.files=[" + (folder_ / "nothing.bin").string() + "]"};
  for (int round = 0; round < rounds; ++round) {
    const bool fails = round % 5 == 1;
    std::filesystem::remove_all(output());
    const pid_t process = train(starter, 2, config, fails ? unreadable : Words());
    ASSERT_EQ(wait_for(process, kPatience), code_of_job(starter, fails ? 2 : 0))
        << "round " << round << "\n"
        << out() << err();
    ASSERT_TRUE(all_gone(5s)) << "round " << round << ::testing::PrintToString(left());
  }
}

INSTANTIATE_TEST_SUITE_P(
    Starters,
    StartsAndEnds,
    ::testing::Values(Starter::kLaunch, Starter::kMpirun, Starter::kTorchrun),
    [](const auto& starter) { return name_of(starter.param); });

} // namespace
} // namespace palimpsest
