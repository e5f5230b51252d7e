#include <palimpsest/tests/core/io/checkpoint_testing.h>

#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> steps(const fs::path& output) {
  std::vector<int64_t> all;
  for (const NumberedCheckpoint& found : list_checkpoints(output)) {
    all.push_back(found.step);
  }
  return all;
}

TEST(CheckpointFolder, NamesAndNumbers) {
  EXPECT_EQ(step_folder(1000), "step-00001000");
  EXPECT_EQ(step_folder(123456789012), "step-123456789012");
  for (const int64_t step : {int64_t{0}, int64_t{7}, int64_t{99999999}, int64_t{100000000}}) {
    EXPECT_EQ(parse_step_folder(step_folder(step)), step);
  }
  for (const char* other :
       {"step-7",
        "step-000000007",
        "step-0000000x",
        "step-",
        "step--0000007",
        "step-+0000007",
        "step_00000007",
        "best",
        "",
        "step-99999999999999999999",
        "step-00000007.tmp"}) {
    EXPECT_EQ(parse_step_folder(other), std::nullopt) << other;
  }
}

TEST(CheckpointFolder, OrderIsByNumber) {
  const TemporaryFolder output;
  for (const int64_t step : {100000000, 9000, 99999999, 10000}) {
    fs::create_directory(output.path() / step_folder(step));
  }
  for (const char* foreign : {"step-abc", "best", "step-9", ".step-00000001.saving"}) {
    fs::create_directory(output / foreign);
  }
  put(output / "step-00000001", "a file");
  EXPECT_THAT(steps(output.path()), ElementsAre(9000, 10000, 99999999, 100000000));
  EXPECT_THAT(list_checkpoints(output / "missing"), IsEmpty());
}

TEST(CheckpointFolder, TheOldestGoAndForeignNamesStay) {
  const TemporaryFolder output;
  fs::create_directory(output / "step-abc");
  fs::create_directory(output / "best");
  for (const int64_t step : {8, 9, 10, 11}) {
    save_sample(output.path(), step, 1, 2);
  }
  EXPECT_THAT(steps(output.path()), ElementsAre(10, 11));
  EXPECT_TRUE(fs::exists(output / "step-abc"));
  EXPECT_TRUE(fs::exists(output / "best"));
  std::vector<std::string> notes;
  EXPECT_EQ(newest_checkpoint(output.path(), Damaged::kRefuse, notes)->step, 11);
  EXPECT_THROW(delete_old_checkpoints(output.path(), 0, notes), InternalError);
}

TEST(CheckpointFolder, WhatIsBeingReadStays) {
  const TemporaryFolder output;
  save_sample(output.path(), 1, 1);
  {
    const CheckpointReader reader(output / "step-00000001");
    save_sample(output.path(), 2, 1, 1);
    EXPECT_THAT(steps(output.path()), ElementsAre(1, 2));
    reader.verify();
  }
  save_sample(output.path(), 3, 1, 1);
  EXPECT_THAT(steps(output.path()), ElementsAre(3));
}

TEST(CheckpointFolder, ADamagedOneDoesNotCountAsKept) {
  const TemporaryFolder output;
  for (const int64_t step : {1, 2, 3, 9}) {
    save_sample(output.path(), step, 1);
  }
  fs::remove(output / "step-00000009/rank-00000.safetensors");
  std::vector<std::string> notes;
  EXPECT_THAT(
      delete_old_checkpoints(output.path(), 1, notes),
      ElementsAre(output / "step-00000002", output / "step-00000001"));
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_THAT(steps(output.path()), ElementsAre(3, 9));
}

TEST(CheckpointFolder, ADamagedNewestIsSkippedOnlyOnRequest) {
  const TemporaryFolder output;
  for (const int64_t step : {1, 2, 3}) {
    save_sample(output.path(), step, 2);
  }
  fs::remove(output / "step-00000003/manifest.textproto");
  fs::copy_file(
      output / "step-00000001/rank-00001.safetensors",
      output / "step-00000002/rank-00001.safetensors",
      fs::copy_options::overwrite_existing);
  std::vector<std::string> notes;
  EXPECT_THAT(
      message_of<UserError>([&] { newest_checkpoint(output.path(), Damaged::kRefuse, notes); }),
      HasSubstr("step-00000003"));
  EXPECT_EQ(newest_checkpoint(output.path(), Damaged::kSkip, notes)->step, 1);
  EXPECT_THAT(
      notes,
      ElementsAre(
          AllOf(HasSubstr("skipped"), HasSubstr("step-00000003"), HasSubstr("manifest")),
          AllOf(HasSubstr("skipped"), HasSubstr("step-00000002"), HasSubstr("rank-00001"))));
}

TEST(CheckpointFolder, OneThatCannotBeDeletedDoesNotKeepTheOthers) {
  const TemporaryFolder output;
  for (const int64_t step : {1, 2, 3}) {
    save_sample(output.path(), step, 1);
  }
  fs::create_directories(output / ".step-00000002.deleting/in the way");
  std::vector<std::string> notes;
  EXPECT_THAT(
      delete_old_checkpoints(output.path(), 1, notes), ElementsAre(output / "step-00000001"));
  EXPECT_THAT(notes, ElementsAre(AllOf(HasSubstr("cannot"), HasSubstr("step-00000002"))));
  EXPECT_THAT(remove_leftovers(output.path()), IsEmpty());
  EXPECT_THAT(steps(output.path()), ElementsAre(2, 3));
}

TEST(CheckpointFolder, AReplacedOneIsThereUntilTheNewOneIs) {
  const TemporaryFolder output;
  const fs::path old = output / "step-00000001";
  const fs::path next = temporary_folder(output.path(), 1);
  for (const auto& [folder, text] : {std::pair(old, "old"), std::pair(next, "new")}) {
    fs::create_directories(folder);
    put(folder / "file", text);
  }
  replace_by_renames(next, old);
  EXPECT_EQ(read_file(old / "file"), "new");
  EXPECT_EQ(read_file(output / ".step-00000001.deleting/file"), "old");
  EXPECT_THAT(remove_leftovers(output.path()), IsEmpty());
  EXPECT_THROW(replace_by_renames(next, old), EnvironmentError); // there is no next one
  EXPECT_EQ(read_file(old / "file"), "new");
  EXPECT_EQ(std::distance(fs::directory_iterator(output.path()), {}), 1);
}

class RunStartTest : public ::testing::Test {
 protected:
  StartRequest request() const {
    StartRequest request{.output = output()};
    request.changes = [this](const std::string& config) {
      EXPECT_EQ(config, sample_checkpoint(1, 0, 1).config_text);
      return changes_;
    };
    return request;
  }
  fs::path output() const {
    return folder_ / "out";
  }
  std::string refusal(const StartRequest& asked) const {
    return message_of<UserError>([&] { decide_start(asked); });
  }
  /// As a process that ends at once.
  static void begin(const fs::path& output, RunStart start) {
    const FileDescriptor lock = begin_run(output, start);
    EXPECT_THAT(start.notes, testing::Each(testing::Not(HasSubstr("cannot be locked"))));
  }
  /// A run that has saved these steps.
  void run_with(const std::vector<int64_t>& saved) {
    begin(output(), {.run_id = "run-a"});
    put(output() / "metrics.jsonl", "{}\n");
    for (const int64_t step : saved) {
      save_sample(output(), step, 1);
    }
  }

  TemporaryFolder folder_;
  std::vector<std::string> changes_;
};

TEST_F(RunStartTest, AnEmptyFolderStartsANewRun) {
  const RunStart first = decide_start(request());
  EXPECT_TRUE(first.is_new);
  EXPECT_FALSE(first.checkpoint.has_value());
  EXPECT_EQ(first.run_id.size(), 16U);
  EXPECT_NE(decide_start(request()).run_id, first.run_id);
  EXPECT_FALSE(fs::exists(output())) << "deciding writes nothing";
  begin(output(), first);
  // Another rank that decides now, or a run that failed before its first step.
  EXPECT_EQ(decide_start(request()).run_id, first.run_id);
  StartRequest automatic = request();
  automatic.resume = "auto";
  EXPECT_FALSE(decide_start(automatic).checkpoint.has_value());
}

TEST_F(RunStartTest, TheSameRunResumesFromTheNewest) {
  run_with({9, 10});
  const RunStart start = decide_start(request());
  EXPECT_FALSE(start.is_new);
  EXPECT_EQ(start.run_id, "run-a");
  EXPECT_EQ(start.checkpoint, output() / "step-00000010");
  EXPECT_THAT(
      start.notes, ElementsAre(AllOf(HasSubstr("resuming run run-a"), HasSubstr("step 10"))));
  begin(output(), start);
  EXPECT_THAT(steps(output()), ElementsAre(9, 10));
}

TEST_F(RunStartTest, ADamagedNewestNeedsAuto) {
  run_with({9, 10});
  fs::remove(output() / "step-00000010/rank-00000.safetensors");
  EXPECT_THAT(refusal(request()), HasSubstr("rank-00000.safetensors"));
  StartRequest automatic = request();
  automatic.resume = "auto";
  const RunStart start = decide_start(automatic);
  EXPECT_EQ(start.checkpoint, output() / "step-00000009");
  EXPECT_THAT(start.notes, ElementsAre(HasSubstr("skipped"), HasSubstr("resuming")));
  fs::remove(output() / "step-00000009/rank-00000.safetensors");
  EXPECT_THAT(
      refusal(automatic),
      AllOf(HasSubstr("without a whole checkpoint"), HasSubstr("step-00000009")));
}

TEST_F(RunStartTest, ARunWithoutCheckpointsIsNotOverwritten) {
  run_with({});
  EXPECT_THAT(
      refusal(request()), AllOf(HasSubstr(output().string()), HasSubstr("training.restart=true")));
}

// It has made its folder and files, and nothing in them.
TEST_F(RunStartTest, ARunThatEndedBeforeItsFirstStepBeginsAgain) {
  begin(output(), {.run_id = "run-a"});
  put(output() / "metrics.jsonl", "");
  fs::create_directory(output() / "tensorboard");
  put(output() / "tensorboard/events", "no step");
  put(output() / "notes.txt", "the user's");
  const RunStart start = decide_start(request());
  EXPECT_TRUE(start.is_new);
  EXPECT_EQ(start.run_id, "run-a");
  EXPECT_FALSE(start.checkpoint.has_value());
  begin(output(), start);
  EXPECT_FALSE(fs::exists(output() / "previous-1"));
  EXPECT_EQ(read_file(output() / "notes.txt"), "the user's");
}

// What nobody would make again by starting again.
TEST_F(RunStartTest, AnythingOfValueIsNotOverwritten) {
  for (const char* name : {"model", "adapter", "best", "metrics.jsonl"}) {
    fs::remove_all(output());
    begin(output(), {.run_id = "run-a"});
    put(output() / "metrics.jsonl", "");
    if (std::string_view(name) == "metrics.jsonl") {
      put(output() / name, "{\"step\": 1"); // a line that a full disk cut off
    } else {
      fs::create_directory(output() / name);
      put(output() / name / "weights", "trained");
    }
    EXPECT_THAT(refusal(request()), HasSubstr("holds a run without a checkpoint")) << name;
    StartRequest restart = request();
    restart.restart = true;
    begin(output(), decide_start(restart));
    EXPECT_TRUE(fs::exists(output() / "previous-1" / name)) << name;
    EXPECT_FALSE(fs::exists(output() / name)) << name;
  }
}

TEST_F(RunStartTest, RestartSetsTheOldRunAside) {
  run_with({9});
  fs::create_directory(output() / "model");
  fs::create_directory(output() / "tensorboard");
  put(output() / "notes.txt", "the user's");
  StartRequest restart = request();
  restart.restart = true;
  const RunStart start = decide_start(restart);
  EXPECT_TRUE(start.is_new);
  EXPECT_NE(start.run_id, "run-a");
  EXPECT_FALSE(start.checkpoint.has_value());
  begin(output(), start);
  EXPECT_THAT(steps(output()), IsEmpty());
  EXPECT_THAT(steps(output() / "previous-1"), ElementsAre(9));
  for (const char* name : {"metrics.jsonl", "model", "run.json", "tensorboard"}) {
    EXPECT_TRUE(fs::exists(output() / "previous-1" / name)) << name;
  }
  EXPECT_FALSE(fs::exists(output() / "metrics.jsonl"));
  EXPECT_TRUE(fs::exists(output() / "notes.txt"));
  // Once more; and the same answer on a rank that decides after this.
  EXPECT_EQ(decide_start(restart).run_id, start.run_id);
  put(output() / "metrics.jsonl", "{}\n");
  begin(output(), decide_start(restart));
  EXPECT_TRUE(fs::exists(output() / "previous-2/metrics.jsonl"));
}

TEST_F(RunStartTest, CheckpointsOfAnotherRunAreRefused) {
  run_with({9});
  begin(output(), {.run_id = "run-b", .is_new = false, .newest_step = 9});
  EXPECT_THAT(refusal(request()), AllOf(HasSubstr("run-b"), HasSubstr("run-a")));
}

TEST_F(RunStartTest, ANamedCheckpoint) {
  run_with({9, 10});
  StartRequest named = request();
  named.resume = (output() / "step-00000010").string() + "/";
  EXPECT_EQ(decide_start(named).run_id, "run-a");
  EXPECT_FALSE(decide_start(named).is_new);

  named.resume = (output() / "step-00000009").string();
  EXPECT_THAT(refusal(named), AllOf(HasSubstr("step-00000009"), HasSubstr("step-00000010")));

  named.output = folder_ / "fork"; // empty: a new run that begins there
  const RunStart fork = decide_start(named);
  EXPECT_TRUE(fork.is_new);
  EXPECT_NE(fork.run_id, "run-a");
  EXPECT_EQ(fork.checkpoint, output() / "step-00000009");

  begin(named.output, fork);
  put(named.output / "metrics.jsonl", "{}\n");
  EXPECT_THAT(refusal(named), AllOf(HasSubstr(fork.run_id), HasSubstr("run-a")));
}

TEST_F(RunStartTest, ANamedCheckpointOfAnotherRunInTheSameFolder) {
  run_with({9, 10});
  begin(output(), {.run_id = "run-b", .is_new = false, .newest_step = 10});
  StartRequest named = request();
  named.resume = (output() / "step-00000010").string();
  EXPECT_THAT(refusal(named), AllOf(HasSubstr("run-b"), HasSubstr("run-a"), HasSubstr("step 10")));
}

TEST_F(RunStartTest, AFolderIsOneRunsAtATime) {
  run_with({9});
  const auto in_use = AllOf(
      HasSubstr(output().string()),
      HasSubstr(fmt::format("process {}", ::getpid())),
      HasSubstr("another folder"));
  const auto refuses = [&](const StartRequest& start) { // before anything long
    return message_of<UserError>([&] { decide_start(start); });
  };
  StartRequest again = request();
  again.restart = true;
  {
    RunStart first = decide_start(request());
    const RunStart second = decide_start(request()); // at the same time
    const FileDescriptor lock = begin_run(output(), first);
    EXPECT_THAT(message_of<UserError>([&] { begin(output(), second); }), in_use);
    EXPECT_THAT(refuses(request()), in_use);
    EXPECT_THAT(refuses(again), in_use);
    EXPECT_THAT(steps(output()), ElementsAre(9)) << "a refused run changes nothing";
  }
  RunStart restarted = decide_start(again);
  const FileDescriptor lock = begin_run(output(), restarted); // moves the old run's files
  EXPECT_THAT(refuses(request()), in_use);
}

TEST_F(RunStartTest, WhatWasDecidedBeforeAnotherRunSavedIsRefused) {
  run_with({9});
  const RunStart start = decide_start(request());
  save_sample(output(), 10, 1); // the other run saves and ends
  EXPECT_THAT(
      message_of<UserError>([&] { begin(output(), start); }),
      AllOf(HasSubstr(output().string()), HasSubstr("start it again")));
  begin(output(), decide_start(request()));
}

TEST_F(RunStartTest, AKilledRunHoldsNothing) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    RunStart start{.run_id = "run-a"};
    const FileDescriptor lock = begin_run(output(), start);
    ::_exit(::write(ready[1], "x", 1) == 1 ? ::pause() : 3);
  }
  char byte = 0;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  EXPECT_THAT(
      message_of<UserError>([&] { begin(output(), decide_start(request())); }),
      HasSubstr(fmt::format("process {} on", child)));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  begin(output(), decide_start(request()));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(RunStartTest, ChangesOfMeaningAreListedAndAllowedOnRequest) {
  run_with({9});
  changes_ = {"training.seed: 42 -> 7", "data.shuffle: true -> false"};
  EXPECT_THAT(
      refusal(request()),
      AllOf(HasSubstr("--allow-change"), HasSubstr(changes_[0]), HasSubstr(changes_[1])));
  StartRequest allowed = request();
  allowed.allow_change = true;
  EXPECT_THAT(
      decide_start(allowed).notes,
      ElementsAre(HasSubstr(changes_[0]), HasSubstr(changes_[1]), HasSubstr("resuming")));
}

TEST_F(RunStartTest, ADamagedRunFile) {
  run_with({9});
  for (const char* text : {"", "{}", "{\"run_id\": 3}", "{\"run_id\": \"\"}", "[]"}) {
    put(output() / "run.json", text);
    EXPECT_THAT(refusal(request()), HasSubstr("run.json"));
  }
}

TEST_F(RunStartTest, AFolderThatCannotBeWrittenIsKnownAtOnce) {
  put(folder_ / "file", "x");
  EXPECT_THAT(
      refusal({.output = folder_ / "file/deeper/run"}),
      AllOf(HasSubstr("training.output"), HasSubstr("file is a file")));
  const auto failure = [](const fs::path& path) {
    return message_of<EnvironmentError>([&] { decide_start({.output = path}); });
  };
  EXPECT_THAT(failure(folder_ / std::string(300, 'd')), HasSubstr("File name too long"));
  if (::geteuid() != 0) { // root may write everywhere
    fs::permissions(folder_.path(), fs::perms::owner_read | fs::perms::owner_exec);
    EXPECT_THAT(failure(output()), HasSubstr("Permission denied"));
    fs::permissions(folder_.path(), fs::perms::owner_all);
  }
  EXPECT_FALSE(fs::exists(output()));
}

TEST(CheckpointFolder, FindsOneOrSaysWhatIsThere) {
  const TemporaryFolder output;
  save_sample(output.path(), 3, 1);
  save_sample(output.path(), 4, 1);
  EXPECT_EQ(find_checkpoint(output.path()), output / "step-00000004");
  EXPECT_EQ(find_checkpoint(output / "step-00000003"), output / "step-00000003");
  const auto refusal = [](const fs::path& path) {
    return message_of<UserError>([&] { find_checkpoint(path); });
  };
  EXPECT_THAT(refusal(output / "none"), HasSubstr("there is no " + (output / "none").string()));
  const fs::path run = output / "run";
  fs::create_directory(run);
  EXPECT_THAT(refusal(run), HasSubstr("is empty"));
  put(run / "notes.txt", "x");
  EXPECT_THAT(refusal(run), HasSubstr("holds notes.txt; give a run's output folder"));
  EXPECT_THAT(refusal(run / "notes.txt"), HasSubstr("is a file"));
  put(run / "run.json", R"({"run_id": "0123abcd"})");
  EXPECT_THAT(refusal(run), HasSubstr("holds run 0123abcd, which has saved no checkpoint yet"));
  fs::create_directory(run / "model");
  EXPECT_THAT(refusal(run), HasSubstr("its trained model is in " + (run / "model").string()));
  put(run / "model/config.json", "{}");
  EXPECT_THAT(refusal(run / "model"), HasSubstr("is a model folder"));
  fs::remove(output / "step-00000003/manifest.textproto");
  // Damaged: its reader says in which way.
  EXPECT_EQ(find_checkpoint(output / "step-00000003"), output / "step-00000003");
}

} // namespace
} // namespace palimpsest
