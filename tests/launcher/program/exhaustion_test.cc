// Ranks as processes, one of which is refused the memory of one tensor: the step runs again with the
// same bits, or the job ends with a message; nobody hangs.

#include <palimpsest/tests/launcher/program/program_testing.h>

#include <gmock/gmock.h>

#include <chrono>
#include <map>
#include <random>
#include <utility>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using testing::kPatience;
using testing::Starter;
using testing::Words;

class Exhaustion : public testing::ProgramRanks {
 protected:
  /// What a job leaves, to be compared bitwise, and the tensors that each rank asks for in it.
  struct Finished {
    std::vector<std::pair<double, double>> losses_and_norms;
    std::string model;
    std::vector<int64_t> tensors;
  };

  /// A job with checkpoints in it, whose counting begins with its training; its exit code, none where
  /// it hangs.
  std::optional<int> train_short(Starter starter, int ranks, Environment environment = {}) {
    std::filesystem::remove_all(output());
    environment["PALIMPSEST_SHORT_AFTER"] = (output() / "metrics.jsonl").string();
    environment["PALIMPSEST_SHORT_COUNTS"] = folder_.string();
    Words command = train_command(
        golden_config("llama-tiny", "activation_checkpointing: full\n"),
        {"training.steps=4",
         "training.global_batch_size=" + std::to_string(2 * ranks),
         "training.reproducible=true",
         "parallel.zero=3",
         "checkpoint.save_every=2"});
    command[0] = PALIMPSEST_SHORT_MEMORY;
    return wait_for(start(on_ranks(starter, ranks, command), environment), kPatience);
  }

  Finished finished(int ranks) const {
    Finished found;
    for (const auto& record : metrics()) {
      found.losses_and_norms.emplace_back(record["loss"], record["grad_norm"]);
    }
    found.model = testing::text_of(output() / "model/model.safetensors");
    for (int rank = 0; rank < ranks; ++rank) {
      found.tensors.push_back(std::stoll(testing::text_of(folder_ / std::to_string(rank))));
    }
    return found;
  }
};

TEST_F(Exhaustion, OneTensorOfOneRankRefusedChangesNoBitOrEndsAllWithAMessage) {
  std::mt19937 random(17);
  const std::vector<Starter> starters =
      testing::usable({Starter::kLaunchWithoutMpirun, Starter::kMpirun});
  std::map<std::pair<Starter, int>, Finished> undisturbed;
  const int rounds = testing::full_tests() ? 100 : 4;
  int ended = 0;
  int issued_again = 0;
  for (int round = 0; round < rounds; ++round) {
    const Starter starter = starters[static_cast<size_t>(round) % starters.size()];
    const int ranks = 2 + static_cast<int>(random() % 3);
    const auto victim = static_cast<size_t>(random() % static_cast<unsigned>(ranks));
    if (!undisturbed.contains({starter, ranks})) {
      ASSERT_EQ(train_short(starter, ranks), 0) << out() << err();
      undisturbed[{starter, ranks}] = finished(ranks);
    }
    const Finished& expected = undisturbed.at({starter, ranks});
    ASSERT_EQ(expected.losses_and_norms.size(), 4U);
    ASSERT_GT(expected.tensors[victim], 100);
    const auto tensor = 1 + random() % static_cast<uint64_t>(expected.tensors[victim]);
    SCOPED_TRACE(
        name_of(starter) + ", round " + std::to_string(round) + ": tensor " +
        std::to_string(tensor) + " of rank " + std::to_string(victim) + " of " +
        std::to_string(ranks));
    const auto code = train_short(
        starter,
        ranks,
        {{"PALIMPSEST_SHORT_RANK", std::to_string(victim)},
         {"PALIMPSEST_SHORT_TENSOR", std::to_string(tensor)}});
    ASSERT_TRUE(code.has_value()) << "hangs\n" << out() << err();
    EXPECT_TRUE(all_gone(std::chrono::seconds(5)));
    if (*code == 0) {
      const Finished found = finished(ranks);
      const bool told = out().find("out of memory in ") != std::string::npos;
      EXPECT_EQ(out().find("the step runs again") != std::string::npos, told);
      issued_again += told ? 0 : 1; // a collective was, when those before it had let go
      EXPECT_EQ(found.losses_and_norms, expected.losses_and_norms);
      EXPECT_TRUE(found.model == expected.model);
    } else {
      ++ended;
      EXPECT_EQ(*code, 1) << out() << err();
      EXPECT_THAT(out() + err(), HasSubstr("rank " + std::to_string(victim)));
      EXPECT_THAT(out() + err(), HasSubstr("out of memory "));
    }
  }
  std::cout << rounds - ended << " of " << rounds << " jobs went on, " << issued_again
            << " of them without running a step again\n";
  EXPECT_LT(issued_again, testing::full_tests() ? rounds / 3 : rounds);
  EXPECT_LT(ended, testing::full_tests() ? rounds / 2 : rounds); // four say little of the share
}

} // namespace
} // namespace palimpsest
