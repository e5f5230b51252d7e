// A process that saves is killed at any moment: what it leaves always opens, holds one step whole,
// and takes further saves.

#include <palimpsest/tests/core/io/checkpoint_testing.h>

#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <random>

namespace palimpsest {
namespace {

constexpr int kWorld = 2;
constexpr int64_t kKeep = 2;

/// Saves step after step on two ranks until it is killed.
[[noreturn]] void save_forever(const std::filesystem::path& output, int64_t first) {
  try {
    for (int64_t step = first;; ++step) {
      save_sample(output, step, kWorld, kKeep);
    }
  } catch (...) {
    ::_exit(3);
  }
}

TEST(CheckpointKill, WhatIsLeftAlwaysResumes) {
  const int kills = std::getenv("PALIMPSEST_FULL") != nullptr ? 60 : 10;
  const TemporaryFolder output;
  const auto begin = std::chrono::steady_clock::now();
  save_sample(output.path(), 1, kWorld);
  const std::chrono::duration<double> one_save = std::chrono::steady_clock::now() - begin;
  std::mt19937 random(7);
  std::uniform_real_distribution<double> saves(0, 3);
  int64_t newest_step = 1;
  int interrupted = 0;
  for (int kill = 0; kill < kills; ++kill) {
    const pid_t child = ::fork();
    if (child == 0) {
      save_forever(output.path(), newest_step + 1);
    }
    std::this_thread::sleep_for(saves(random) * one_save);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the save failed by itself";

    std::vector<std::string> notes;
    const auto newest = newest_checkpoint(output.path(), Damaged::kRefuse, notes);
    ASSERT_TRUE(newest.has_value());
    EXPECT_GE(newest->step, newest_step) << "a finished checkpoint was lost";
    newest_step = newest->step;
    const CheckpointReader reader(newest->folder);
    reader.verify();
    expect_share(reader, newest->step, kill % 3, 3);
    for (const NumberedCheckpoint& older : list_checkpoints(output.path())) {
      CheckpointReader(older.folder).verify();
    }
    for (const auto& entry : std::filesystem::directory_iterator(output.path())) {
      interrupted += entry.path().filename().string().starts_with('.') ? 1 : 0;
    }
  }
  EXPECT_GT(newest_step, 1) << "no save was completed";
  EXPECT_GT(interrupted, 0) << "no save was interrupted";
  save_sample(output.path(), newest_step + 1, 1, 1);
  ASSERT_EQ(list_checkpoints(output.path()).size(), 1U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(output.path()), {}), 1);
}

} // namespace
} // namespace palimpsest
