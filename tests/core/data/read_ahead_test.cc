#include <palimpsest/core/data/read_ahead.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/fake_source.h>

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <mutex>

namespace palimpsest {
namespace {

/// Counts who reads what; sample 3 cannot be read.
class WatchedSource final : public SampleSource {
 public:
  explicit WatchedSource(std::vector<std::pair<int64_t, bool>>& reads) : reads_(reads) {}
  SampleKind kind() const override {
    return SampleKind::kTokens;
  }
  int64_t size() const override {
    return 100;
  }
  int64_t input_size() const override {
    return 2;
  }
  int64_t label_size() const override {
    return 2;
  }
  void read(int64_t sample, void* inputs, void* labels) const override {
    {
      const std::lock_guard lock(mutex_);
      reads_.emplace_back(sample, std::this_thread::get_id() == user_);
    }
    if (sample == 3) {
      throw UserError("sample 3 is broken");
    }
    for (int64_t t = 0; t < 2; ++t) {
      static_cast<int64_t*>(inputs)[t] = 10 * sample + t;
      static_cast<int64_t*>(labels)[t] = -sample;
    }
  }

 private:
  mutable std::mutex mutex_;
  std::vector<std::pair<int64_t, bool>>& reads_; // and whether the test's thread did
  std::thread::id user_ = std::this_thread::get_id();
};

using Reads = std::vector<std::pair<int64_t, bool>>;

void wait_for(const ReadAhead& ahead, size_t rows) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (ahead.ready() != rows && std::chrono::steady_clock::now() < end) {
    std::this_thread::yield();
  }
  ASSERT_EQ(ahead.ready(), rows);
}

TEST(ReadAhead, GivesWhatTheSourceGivesReadBefore) {
  Reads reads;
  ReadAhead ahead(std::make_unique<WatchedSource>(reads));
  ahead.expect({5, 2});
  wait_for(ahead, 2);
  EXPECT_EQ(reads, (Reads{{5, false}, {2, false}}));
  EXPECT_EQ(read_sample(ahead, 2).inputs, (Ids{20, 21}));
  EXPECT_EQ(read_sample(ahead, 5).labels, (Ids{-5, -5}));
  EXPECT_EQ(reads.size(), 2);
  EXPECT_EQ(read_sample(ahead, 5).inputs, (Ids{50, 51})); // once more: from the source
  EXPECT_EQ(reads.back(), (std::pair<int64_t, bool>{5, true}));
}

TEST(ReadAhead, ForgetsWhatIsNoLongerExpected) {
  Reads reads;
  ReadAhead ahead(std::make_unique<WatchedSource>(reads));
  ahead.expect({5, 2});
  wait_for(ahead, 2);
  ahead.expect({2, 7});
  while (ahead.ready() != 2) {
    std::this_thread::yield();
  }
  EXPECT_EQ(read_sample(ahead, 7).inputs, (Ids{70, 71}));
  EXPECT_EQ(read_sample(ahead, 5).inputs, (Ids{50, 51}));
  EXPECT_EQ(reads, (Reads{{5, false}, {2, false}, {7, false}, {5, true}}));
}

TEST(ReadAhead, ThrowsWhereTheSampleIsRead) {
  Reads reads;
  ReadAhead ahead(std::make_unique<WatchedSource>(reads));
  ahead.expect({3, 4});
  wait_for(ahead, 1);
  EXPECT_EQ(read_sample(ahead, 4).inputs, (Ids{40, 41}));
  EXPECT_THROW(read_sample(ahead, 3), UserError);
}

TEST(ReadAhead, IsRightWhoeverIsFaster) {
  Reads reads;
  ReadAhead ahead(std::make_unique<WatchedSource>(reads));
  for (int64_t round = 0; round < 2000; ++round) {
    const int64_t first = 4 + round % 90;
    ahead.expect({first, first + 1, first + 2, first});
    for (const int64_t sample : {first, first + 1, first + 2, first}) {
      ASSERT_EQ(read_sample(ahead, sample).inputs, (Ids{10 * sample, 10 * sample + 1}));
    }
  }
}

} // namespace
} // namespace palimpsest
