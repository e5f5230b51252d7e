#include <palimpsest/parallel/comm/fingerprint.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/in_process.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <mutex>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::SizeIs;

using Fingerprint = std::map<std::string, std::string>;

/// What each rank says.
std::vector<std::string> errors(const std::vector<Fingerprint>& ranks) {
  std::mutex mutex;
  std::vector<std::string> messages;
  run_threads(in_process_world(static_cast<int>(ranks.size())), [&](Communicator& comm) {
    std::string message = "no error";
    try {
      require_same(comm, ranks[comm.rank()]);
    } catch (const UserError& error) {
      message = error.what();
    }
    const std::lock_guard lock(mutex);
    messages.push_back(message);
  });
  return messages;
}

TEST(Fingerprint, EqualOnesPass) {
  EXPECT_THAT(errors({{}, {}, {}}), Each("no error"));
  const Fingerprint same{{"build", "1"}, {"weights", std::string(100'000, 'x')}};
  EXPECT_THAT(errors({same, same, same}), Each("no error"));
}

TEST(Fingerprint, TheFirstDifferenceIsNamedWithTheRanksOnEachSide) {
  const auto of_seed = [](const std::string& seed) {
    return Fingerprint{{"build", "1"}, {"config.training.seed", seed}, {"weights", seed}};
  };
  const auto messages = errors({of_seed("42"), of_seed("43"), of_seed("42"), of_seed("44")});
  EXPECT_THAT(
      messages,
      AllOf(
          SizeIs(4),
          Each(HasSubstr("config.training.seed differs between ranks: '42' on rank 0, 2; '43' on "
                         "rank 1; '44' on rank 3"))));
  EXPECT_THAT(messages, Each(Not(HasSubstr("weights"))));
}

TEST(Fingerprint, AMissingNameIsADifference) {
  EXPECT_THAT(
      errors({{}, {{"lora", "rank 16"}}}),
      Each(HasSubstr("lora differs between ranks: missing on rank 0; 'rank 16' on rank 1")));
}

// The same beginning of 200 characters, and the same length.
TEST(Fingerprint, LongValuesAreShownWhereTheyDiffer) {
  const std::string alike(200, 'a');
  EXPECT_THAT(
      errors({{{"config", alike + "left" + alike}}, {{"config", alike + "right" + alike}}}),
      Each(AllOf(HasSubstr("aleft"), HasSubstr("aright"), Not(HasSubstr(alike)))));
}

} // namespace
} // namespace palimpsest
