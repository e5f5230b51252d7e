// Covers: launcher/compose/plan_choice.cc
// Requests to stop while a run is prepared: all ranks end alike, and nothing is written.

#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/compose/plan_choice.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <filesystem>
#include <limits>
#include <mutex>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::Each;
using ::testing::HasSubstr;
using testing::TestFolder;

/// Micro-batches of several sizes are tried.
std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 24 * 13, 7);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256}}
data: {{files: [{}], format: text, sequence_length: 12}}
training: {{steps: 2, global_batch_size: 12, threads: 1}}
optimizer: {{learning_rate: 1e-2}}
activation_checkpointing: auto
)",
      folder / "text.txt");
}

struct Stopped {
  std::vector<std::string> errors; // of the ranks that ended with the code of a stop
  int64_t questions = 0; // of the last rank before its run was there; 0: it never was
};

/// Prepares a run whose last rank is asked to stop from its question number `stop` on, or else from
/// the first one that comes when the plan is made.
Stopped prepare(const TestFolder& folder, int count, int64_t stop) {
  Stopped stopped;
  std::mutex mutex;
  testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
    int64_t questions = 0;
    int64_t first = world.rank() == count - 1 ? stop : std::numeric_limits<int64_t>::max();
    Ranks ranks(world, {.ranks = count, .threads = 1, .stop_requested = [&] {
                          return questions++ >= first;
                        }});
    try {
      Run run(testing::run_config(yaml(folder), folder, {}), ranks);
      if (world.rank() == count - 1) {
        stopped.questions = questions;
        first = questions;
      }
      run.prepare();
    } catch (const Error& error) {
      const std::lock_guard lock(mutex);
      EXPECT_EQ(error.exit_code(), kStoppedExitCode) << error.what();
      EXPECT_TRUE(count == 1 || ranks.failed_together());
      stopped.errors.emplace_back(error.what());
    }
  });
  return stopped;
}

// Before, in and after the measuring, of whatever micro-batch.
TEST(PlanChoice, ARequestToOneRankEndsThePreparationOfAll) {
  for (const int count : {1, 2, 3}) {
    const TestFolder folder;
    for (const int64_t stop : {0, 1, 2, 3, 7, 30, 50, 80, 1'000'000}) {
      SCOPED_TRACE(fmt::format("{} ranks, stop at question {}", count, stop));
      const Stopped stopped = prepare(folder, count, stop);
      EXPECT_EQ(stopped.errors.size(), static_cast<size_t>(count));
      EXPECT_THAT(stopped.errors, Each(HasSubstr("asked to stop before the first step")));
      EXPECT_FALSE(std::filesystem::exists(folder / "run"));
      EXPECT_EQ(stopped.questions > 0, stop > 80) << stopped.questions;
    }
  }
}

} // namespace
} // namespace palimpsest
