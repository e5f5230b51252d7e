#include <palimpsest/core/data/examples/token_examples.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/fake_examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <barrier>
#include <functional>
#include <mutex>
#include <span>
#include <thread>

namespace palimpsest {
namespace {

using testing::Each;
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
    const auto sizes = measure(
        examples, {.sequence_length = 9, .vocabulary_size = 10, .reading = {.threads = threads}});
    for (size_t i = 0; i < many.size(); ++i) {
      ASSERT_EQ(sizes[i].tokens, std::ssize(many[i]));
    }
  }
}

/// `ranks` threads that measure together: what each gets, or its error.
std::vector<std::string> measured_by(
    int ranks,
    const std::function<std::unique_ptr<TokenExamples>(int rank)>& examples_of) {
  std::barrier meeting(ranks);
  std::vector<int64_t> sums;
  std::mutex mutex;
  std::vector<std::string> results(static_cast<size_t>(ranks));
  const auto rank_main = [&](int rank) {
    const auto sum = [&](std::span<int64_t> numbers) {
      {
        const std::lock_guard lock(mutex);
        sums.resize(numbers.size());
        for (size_t i = 0; i < numbers.size(); ++i) {
          sums[i] += numbers[i];
        }
      }
      meeting.arrive_and_wait();
      std::ranges::copy(sums, numbers.begin());
      meeting.arrive_and_wait();
      if (rank == 0) {
        sums.clear();
      }
      meeting.arrive_and_wait();
    };
    const auto examples = examples_of(rank);
    std::string& result = results[static_cast<size_t>(rank)];
    try {
      const auto sizes = measure(
          *examples,
          {.sequence_length = 9,
           .vocabulary_size = 10,
           .reading = {.threads = 2, .rank = rank, .ranks = ranks, .sum = sum}});
      for (const ExampleSize& size : sizes) {
        result += std::to_string(size.tokens) + (size.learns ? "+ " : "- ");
      }
    } catch (const UserError& error) {
      result = error.what();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < ranks; ++rank) {
      threads.emplace_back(rank_main, rank);
    }
  }
  return results;
}

/// Examples that count how often they are read.
class CountedExamples final : public TokenExamples {
 public:
  explicit CountedExamples(std::vector<std::vector<int32_t>> examples, std::atomic<int64_t>& reads)
      : examples_(std::move(examples)), reads_(reads) {}
  int64_t size() const override {
    return examples_.size();
  }
  TokenExample read(int64_t index) const override {
    ++reads_;
    return examples_.read(index);
  }
  std::string location(int64_t index) const override {
    return examples_.location(index);
  }
  std::string name() const override {
    return examples_.name();
  }

 private:
  FakeExamples examples_;
  std::atomic<int64_t>& reads_;
};

TEST(Measure, IsSharedByRanksWithoutAnotherResult) {
  for (const int count : {0, 1, 63, 64, 65, 1000}) {
    std::vector<std::vector<int32_t>> many;
    std::string expected;
    for (int i = 0; i < count; ++i) {
      many.emplace_back(static_cast<size_t>(i % 7), i % 3 == 0 ? -5 : 5);
      expected += std::to_string(i % 7) + (i % 3 == 0 && i % 7 > 1 ? "+ " : "- ");
    }
    for (const int ranks : {2, 3}) {
      std::atomic<int64_t> reads = 0;
      const auto results =
          measured_by(ranks, [&](int) { return std::make_unique<CountedExamples>(many, reads); });
      EXPECT_THAT(results, Each(expected)) << count << " on " << ranks;
      EXPECT_EQ(reads, count); // each by one rank
    }
  }
}

TEST(Measure, FailsAlikeOnAllRanks) {
  std::vector<std::vector<int32_t>> many(1000, {1, -2});
  for (const size_t bad : {130, 131, 700}) {
    many[bad] = {1, 10};
  }
  EXPECT_THAT(
      measured_by(3, [&](int) { return std::make_unique<FakeExamples>(many); }),
      Each(HasSubstr("fake:131: token 10 is beyond the model's vocabulary")));
  EXPECT_THAT(
      measured_by(
          3,
          [&](int rank) {
            return std::make_unique<FakeExamples>(
                std::vector<std::vector<int32_t>>(rank == 2 ? 999 : 1000, {1}));
          }),
      Each(HasSubstr("fake: rank 2 finds 999 samples where rank 0 finds 1000; all ranks need")));
}

/// Reads well the second time.
class FlakyExamples final : public TokenExamples {
 public:
  int64_t size() const override {
    return 200;
  }
  TokenExample read(int64_t index) const override {
    if (index == 70 && !failed_.exchange(true)) {
      throw EnvironmentError("a moment please");
    }
    return {.ids = {1, 2, 3}, .targets = {0, 1, 1}};
  }
  std::string location(int64_t /*index*/) const override {
    return "flaky";
  }
  std::string name() const override {
    return "flaky";
  }

 private:
  mutable std::atomic<bool> failed_ = false;
};

TEST(Measure, ReadsOnWhereAFailureGoesAway) {
  const auto sizes = measure(FlakyExamples(), {.sequence_length = 9, .vocabulary_size = 10});
  ASSERT_EQ(sizes.size(), 200);
  EXPECT_TRUE(std::ranges::all_of(
      sizes, [](const ExampleSize& size) { return size.tokens == 3 && size.learns; }));
}

TEST(Measure, TellsHowFarItIs) {
  const FakeExamples examples(std::vector<std::vector<int32_t>>(640, {1, -2}));
  std::vector<double> told;
  const auto progress = [&](const std::string& name, double done) {
    EXPECT_EQ(name, "fake");
    told.push_back(done);
  };
  measure(
      examples, {.sequence_length = 9, .vocabulary_size = 10, .reading = {.progress = progress}});
  ASSERT_EQ(told.size(), 10);
  EXPECT_EQ(told.front(), 0.1);
  EXPECT_EQ(told.back(), 1);
}

TEST(RequireUnchanged, NamesTheExample) {
  const FakeExamples examples({{1, 2}});
  require_unchanged(examples, 0, 2, 2);
  EXPECT_THAT(
      [&] { require_unchanged(examples, 0, 2, 3); },
      ThrowsMessage<UserError>(HasSubstr("fake:1: has 2 tokens where it had 3")));
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
          measure(
              examples,
              {.sequence_length = 9, .vocabulary_size = 10, .reading = {.threads = threads}});
        },
        ThrowsMessage<UserError>(
            HasSubstr("fake:702: token 10 is beyond the model's vocabulary of 10 ids")));
  }
}

} // namespace
} // namespace palimpsest
