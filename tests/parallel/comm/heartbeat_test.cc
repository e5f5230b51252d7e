#include <palimpsest/parallel/comm/heartbeat.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <thread>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr std::chrono::milliseconds kInterval{30};

/// A board that ranks as threads share, and that can be taken away.
struct Wall {
  std::mutex mutex;
  std::map<std::string, std::string> texts;
  bool lost = false;
};

class WallBoard final : public Board {
 public:
  explicit WallBoard(std::shared_ptr<Wall> wall) : wall_(std::move(wall)) {}
  void put(const std::string& key, const std::string& text) override {
    const std::lock_guard lock(wall_->mutex);
    must_be_there();
    wall_->texts[key] = text;
  }
  std::optional<std::string> get(const std::string& key) override {
    const std::lock_guard lock(wall_->mutex);
    must_be_there();
    const auto found = wall_->texts.find(key);
    return found == wall_->texts.end() ? std::nullopt : std::optional(found->second);
  }

 private:
  void must_be_there() const {
    if (wall_->lost) {
      throw std::runtime_error("no wall");
    }
  }
  std::shared_ptr<Wall> wall_;
};

class HeartbeatTest : public ::testing::Test {
 protected:
  HeartbeatTest() {
    for (int rank = 0; rank < 3; ++rank) {
      ranks_.push_back(std::make_unique<Heartbeat>(rank, std::make_shared<RankStatus>()));
      ranks_.back()->start(std::make_unique<WallBoard>(wall_), kInterval, "rank 0 has ended");
    }
  }
  static void wait_until(const std::function<bool()>& condition) {
    for (int i = 0; i < 500 && !condition(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    ASSERT_TRUE(condition());
  }

  std::shared_ptr<Wall> wall_ = std::make_shared<Wall>();
  std::vector<std::unique_ptr<Heartbeat>> ranks_;
};

TEST_F(HeartbeatTest, NamesWhoHasNotComeAndWhereItIs) {
  for (const int rank : {0, 1}) {
    ranks_[rank]->status().set_issued("shard", 5);
  }
  ranks_[2]->status().set_issued("shard", 4);
  ranks_[2]->status().set_place({.phase = "reading data", .step = 3});
  EXPECT_EQ(
      ranks_[0]->explain({"shard", {0, 1, 2}, 5}),
      "rank 2 has not come to it: it lives, at reading data of step 3");
}

TEST_F(HeartbeatTest, TellsTheDeadFromTheLate) {
  ranks_[1]->status().set_issued("shard", 5);
  ranks_[1]->status().set_place({.phase = "forward block 0", .step = 1});
  std::this_thread::sleep_for(5 * kInterval);
  ranks_[1]->stop();
  EXPECT_THAT(
      ranks_[0]->explain({"shard", {0, 1, 2}, 5}),
      AllOf(
          HasSubstr("rank 1 gives no sign of life, its process has ended or is stopped: it was "
                    "last at forward block 0 of step 1"),
          HasSubstr("rank 2 has not come to it: it lives, at an unnamed place")));
}

TEST_F(HeartbeatTest, SaysWhenAllHaveCome) {
  for (const auto& rank : ranks_) {
    rank->status().set_issued("shard", 5);
  }
  EXPECT_THAT(
      ranks_[0]->explain({"shard", {0, 1, 2}, 5}), HasSubstr("all ranks have come to it and live"));
}

TEST_F(HeartbeatTest, APeerOfATransferIsSaidToBeSomewhere) {
  ranks_[2]->status().set_place({.phase = "saving"});
  EXPECT_EQ(ranks_[0]->explain({"pipeline", {2}}), "rank 2 lives, at saving");
}

TEST_F(HeartbeatTest, AnEndReachesAllWithItsFirstReason) {
  ranks_[1]->end("rank 1 aborted: out of memory");
  ranks_[1]->end("something later");
  EXPECT_TRUE(ranks_[1]->ended());
  wait_until([&] { return ranks_[0]->ended() && ranks_[2]->ended(); });
  for (const auto& rank : ranks_) {
    EXPECT_EQ(rank->reason(), "rank 1 aborted: out of memory");
  }
}

TEST_F(HeartbeatTest, ALostBoardEndsTheWorld) {
  {
    const std::lock_guard lock(wall_->mutex);
    wall_->lost = true;
  }
  wait_until([&] { return ranks_[1]->ended(); });
  EXPECT_EQ(ranks_[1]->reason(), "rank 0 has ended");
}

TEST_F(HeartbeatTest, LongWorkCountsWhileItsRankLives) {
  using std::chrono::milliseconds;
  EXPECT_EQ(ranks_[0]->since_long_work({1, 2}), std::nullopt);
  {
    const ScopedLongWork work(ranks_[1]->status(), "tokenising");
    wait_until([&] { return ranks_[0]->since_long_work({1, 2}) == milliseconds(0); });
    EXPECT_EQ(ranks_[0]->since_long_work({2}), std::nullopt);
  }
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_GE(ranks_[0]->since_long_work({1, 2}), milliseconds(50));
  ranks_[1]->stop();
  EXPECT_EQ(ranks_[0]->since_long_work({1, 2}), std::nullopt);
}

TEST_F(HeartbeatTest, OnlyOthersThatComputeDoLongWork) {
  using std::chrono::milliseconds;
  const ScopedLongWork own(ranks_[0]->status(), "saving");
  const ScopedLongWork theirs(ranks_[1]->status(), "saving");
  wait_until([&] { return ranks_[2]->since_long_work({0, 1, 2}) == milliseconds(0); });
  EXPECT_EQ(ranks_[0]->since_long_work({0, 2}), std::nullopt);
  ranks_[0]->status().set_waiting_for("barrier 1 of world");
  ranks_[1]->status().set_waiting_for("barrier 1 of world");
  std::this_thread::sleep_for(milliseconds(200));
  EXPECT_GE(ranks_[2]->since_long_work({0, 1, 2}), milliseconds(100));
}

TEST_F(HeartbeatTest, ManyMissingRanksAreCounted) {
  std::vector<int> ranks(20);
  for (int rank = 0; rank < 20; ++rank) {
    ranks[rank] = rank;
  }
  const std::string text = ranks_[0]->explain({"world", ranks, 1});
  EXPECT_THAT(text, AllOf(HasSubstr("rank 8 "), Not(HasSubstr("rank 9 "))));
  EXPECT_THAT(text, HasSubstr("before its first sign of life"));
  EXPECT_THAT(text, HasSubstr("11 more ranks are missing"));
}

TEST(Heartbeat, WithoutABoardNothingIsKnownOfOthers) {
  Heartbeat alone(0, std::make_shared<RankStatus>());
  EXPECT_EQ(alone.explain({"world", {0, 1}, 1}), "nothing is known of the other ranks");
  EXPECT_EQ(alone.since_long_work({1}), std::nullopt);
  alone.end("why not");
  EXPECT_EQ(alone.reason(), "why not");
}

} // namespace
} // namespace palimpsest
