#include <palimpsest/core/data/examples/token_examples.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/fake_examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(Measure, CountsTokensAndLooksForATargetThatIsPredicted) {
  const FakeExamples examples({{1, 2, -3}, {1, 2, 3, -4}, {-1, 2}, {}, {1, -2}, {-9}});
  const auto sizes = measure(examples, {.sequence_length = 3, .vocabulary_size = 10});
  std::vector<int32_t> tokens;
  std::vector<bool> learns;
  for (const ExampleSize& size : sizes) {
    tokens.push_back(size.tokens);
    learns.push_back(size.learns);
  }
  EXPECT_EQ(tokens, (std::vector<int32_t>{3, 4, 2, 0, 2, 1}));
  EXPECT_EQ(learns, (std::vector<bool>{true, false, false, false, true, false}));
}

TEST(Measure, GivesTheSameOnEveryNumberOfThreads) {
  std::vector<std::vector<int32_t>> many;
  for (int32_t i = 0; i < 5000; ++i) {
    many.emplace_back(static_cast<size_t>(i % 7), 5);
  }
  const FakeExamples examples(many);
  for (const int threads : {1, 2, 5}) {
    const auto sizes =
        measure(examples, {.sequence_length = 9, .vocabulary_size = 10, .threads = threads});
    for (size_t i = 0; i < many.size(); ++i) {
      ASSERT_EQ(sizes[i].tokens, std::ssize(many[i]));
    }
  }
}

TEST(Measure, NamesTheFirstBadExample) {
  std::vector<std::vector<int32_t>> many(5000, {1, -2});
  for (const size_t bad : {701, 702, 4000}) {
    many[bad] = {1, 10};
  }
  const FakeExamples examples(many);
  for (const int threads : {1, 2, 5}) {
    EXPECT_THAT(
        [&] {
          measure(examples, {.sequence_length = 9, .vocabulary_size = 10, .threads = threads});
        },
        ThrowsMessage<UserError>(
            HasSubstr("fake:702: token 10 is beyond the model's vocabulary of 10 ids")));
  }
}

} // namespace
} // namespace palimpsest
