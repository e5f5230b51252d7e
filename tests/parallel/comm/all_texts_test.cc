#include <palimpsest/parallel/comm/all_texts.h>

#include <palimpsest/parallel/comm/in_process.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using ::testing::ElementsAreArray;

TEST(AllTexts, EveryRankHasEverybodysWhateverItsLength) {
  const std::vector<std::string> texts = {"", "a", std::string(100'000, 'x'), "ä\n"};
  for (size_t size = 1; size <= texts.size(); ++size) {
    run_threads(in_process_world(static_cast<int>(size)), [&](Communicator& comm) {
      EXPECT_THAT(
          all_texts(comm, texts[comm.rank()]), ElementsAreArray(texts.data(), texts.data() + size));
    });
  }
}

} // namespace
} // namespace palimpsest
