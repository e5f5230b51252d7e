// What happens while a checkpoint is being saved: requests to stop, a slow disk, a rank that hangs.

#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/tests/launcher/program/program_testing.h>

#include <gmock/gmock.h>

#include <optional>
#include <utility>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using std::chrono::milliseconds;
using testing::kPatience;
using testing::Starter;
using testing::usable;
using testing::Words;

class Saves : public testing::ProgramRanks {
 protected:
  static constexpr int64_t kFirstSave = 3;
  static constexpr int64_t kSecondSave = 6;
  static constexpr int64_t kSteps = 8;

  /// Numbers and parameters of a run, to be compared bitwise.
  struct Outcome {
    std::vector<std::pair<double, double>> losses_and_norms;
    std::string model;
    bool operator==(const Outcome&) const = default;
  };

  static Environment slow_disk(int rank, milliseconds delay) {
    return {
        {"LD_PRELOAD", PALIMPSEST_SLOW_DISK},
        {"PALIMPSEST_SLOW_RANK", std::to_string(rank)},
        {"PALIMPSEST_SLOW_MILLISECONDS", std::to_string(delay.count())},
        {"ASAN_OPTIONS", "verify_asan_link_order=0:detect_leaks=0"}};
  }

  pid_t train_to(
      Starter starter,
      int64_t steps,
      const Words& more = {},
      const Environment& environment = {}) {
    Words overrides = {"training.steps=" + std::to_string(steps), "checkpoint.save_every=3"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return train(starter, 2, golden_config("llama-tiny"), overrides, environment);
  }

  bool is_saving(int64_t step) const {
    return std::filesystem::exists(temporary_folder(output(), step));
  }
  bool has_saved(int64_t step) const {
    return std::filesystem::exists(output() / step_folder(step));
  }

  /// A run that is in the middle of saving `step`, which it will be for `delay`.
  pid_t start_saving(Starter starter, int64_t step, milliseconds delay, const Words& more = {}) {
    std::filesystem::remove_all(output());
    if (step > kFirstSave) {
      EXPECT_EQ(wait_for(train_to(starter, step - kFirstSave), kPatience), 0) << err();
    }
    const pid_t process = train_to(starter, 1000000, more, slow_disk(1, delay));
    EXPECT_TRUE(testing::eventually(kPatience, [&] { return is_saving(step); })) << err();
    return process;
  }

  /// The same command, to the end of the run.
  Outcome outcome(Starter starter) {
    EXPECT_EQ(wait_for(train_to(starter, kSteps), kPatience), 0) << out() << err();
    Outcome outcome;
    for (const auto& record : metrics()) {
      outcome.losses_and_norms.emplace_back(record["loss"], record["grad_norm"]);
    }
    EXPECT_EQ(outcome.losses_and_norms.size(), kSteps);
    outcome.model = testing::text_of(output() / "model/model.safetensors");
    EXPECT_FALSE(outcome.model.empty());
    return outcome;
  }

  /// The run goes on from what is there, to the bits of one that nobody interrupted.
  void expect_it_goes_on(Starter starter) {
    const Outcome interrupted = outcome(starter);
    EXPECT_FALSE(is_saving(kFirstSave) || is_saving(kSecondSave)); // no remains
    if (!straight_) {
      std::filesystem::remove_all(output());
      straight_ = outcome(Starter::kLaunchWithoutMpirun);
    }
    EXPECT_TRUE(interrupted == *straight_);
  }

 private:
  std::optional<Outcome> straight_;
};

TEST_F(Saves, ARequestToStopLetsTheSaveEnd) {
  const std::vector<std::pair<Starter, int>> requests = {
      {Starter::kLaunch, SIGTERM},
      {Starter::kTorchrun, SIGINT},
      {Starter::kLaunchWithoutMpirun, SIGINT},
      {Starter::kMpirun, SIGUSR1},
      {Starter::kTorchrun, SIGTERM},
      {Starter::kLaunch, SIGINT}};
  const size_t count = testing::full_tests() ? requests.size() : 2;
  for (size_t i = 0; i < count; ++i) {
    const auto& [starter, signal] = requests[i];
    if (usable({starter}).empty()) {
      continue;
    }
    SCOPED_TRACE(name_of(starter) + ", " + strsignal(signal));
    const pid_t process = start_saving(starter, kFirstSave, 1000ms);
    kill(process, signal);
    EXPECT_TRUE(is_saving(kFirstSave)) << "the signal came too late";
    EXPECT_EQ(wait_for(process, 20s), code_of_job(starter, kStoppedExitCode)) << out() << err();
    EXPECT_TRUE(all_gone(5s));
    EXPECT_THAT(out(), HasSubstr("stopped after step 3"));
    EXPECT_TRUE(has_saved(kFirstSave));
    EXPECT_EQ(metrics().size(), kFirstSave); // the next border is the end
    expect_it_goes_on(starter);
  }
}

// The others learn of it at the end of the step that is being saved.
TEST_F(Saves, ARequestToOneRankAloneLetsTheSaveOfAllEnd) {
  const Starter starter = Starter::kVariables;
  const pid_t process = start_saving(starter, kFirstSave, 1000ms);
  kill(rank_process(1), SIGTERM);
  EXPECT_TRUE(is_saving(kFirstSave)) << "the signal came too late";
  EXPECT_EQ(wait_for(process, 20s), kStoppedExitCode) << out() << err();
  EXPECT_TRUE(all_gone(5s));
  EXPECT_TRUE(has_saved(kFirstSave));
  EXPECT_EQ(metrics().size(), kFirstSave);
  expect_it_goes_on(Starter::kLaunchWithoutMpirun);
}

// A second signal to launch, or mpirun's way with SIGTERM: two seconds, then the ranks are killed.
TEST_F(Saves, AJobThatIsEndedInASaveLeavesTheCheckpointBefore) {
  std::vector<Starter> starters = {Starter::kLaunch};
  if (testing::full_tests()) {
    starters = usable({Starter::kLaunch, Starter::kMpirun});
  }
  for (const Starter starter : starters) {
    SCOPED_TRACE(name_of(starter));
    const pid_t process = start_saving(starter, kSecondSave, 8000ms);
    kill(process, SIGTERM);
    if (starter == Starter::kLaunch) {
      std::this_thread::sleep_for(600ms); // within half a second they are one
      kill(process, SIGTERM);
    }
    EXPECT_EQ(wait_for(process, 10s), starter == Starter::kLaunch ? 128 + SIGTERM : 1) << err();
    EXPECT_TRUE(all_gone(10s));
    EXPECT_FALSE(has_saved(kSecondSave));
    EXPECT_TRUE(has_saved(kFirstSave));
    expect_it_goes_on(starter);
  }
}

// A save is declared as long work: others wait for it however short the time for an operation is.
TEST_F(Saves, ASlowDiskIsWaitedFor) {
  const auto delay = 2500ms;
  for (const auto& [starter, slow] :
       {std::pair(Starter::kLaunch, 0), std::pair(Starter::kLaunchWithoutMpirun, 1)}) {
    SCOPED_TRACE(name_of(starter));
    std::filesystem::remove_all(output());
    const pid_t process =
        train_to(starter, kFirstSave, {"parallel.timeout=1"}, slow_disk(slow, delay));
    ASSERT_TRUE(testing::eventually(kPatience, [&] { return is_saving(kFirstSave); })) << err();
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(wait_for(process, kPatience), 0) << out() << err();
    EXPECT_GT(std::chrono::steady_clock::now() - begin, delay);
    EXPECT_TRUE(has_saved(kFirstSave));
  }
}

// Declared or not: who gives no sign of life is not waited for.
TEST_F(Saves, ARankThatHangsInOneIsNamed) {
  const Starter starter = Starter::kLaunchWithoutMpirun;
  const pid_t process = start_saving(starter, kSecondSave, 3000ms, {"parallel.timeout=1"});
  const pid_t hung = rank_process(1);
  ASSERT_GT(hung, 0);
  kill(hung, SIGSTOP);
  ASSERT_TRUE(is_saving(kSecondSave));
  EXPECT_EQ(wait_for(process, 20s), 1);
  EXPECT_THAT(err(), HasSubstr("rank 1 gives no sign of life"));
  EXPECT_TRUE(all_gone(10s));
  EXPECT_FALSE(has_saved(kSecondSave));
  expect_it_goes_on(starter);
}

} // namespace
} // namespace palimpsest
