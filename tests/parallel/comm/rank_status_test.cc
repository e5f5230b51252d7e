#include <palimpsest/parallel/comm/rank_status.h>

#include <gtest/gtest.h>

#include <thread>

namespace palimpsest {
namespace {

TEST(RankStatus, AReportTravelsAsText) {
  RankStatus status;
  status.set_place({.phase = "backward block 3", .step = 7, .operation = 41});
  status.set_issued("/4.0", 17);
  status.set_waiting_for("all_gather 17 of 'shard'");
  const RankStatus::Report report = decode_report(encode(status.report()));
  EXPECT_EQ(report.issued.at("/4.0"), 17);
  EXPECT_EQ(
      describe(report),
      "at backward block 3 of step 7 (operation 41), waiting for all_gather 17 of 'shard'");
}

TEST(RankStatus, SaysOnlyWhatItKnows) {
  RankStatus status;
  EXPECT_EQ(describe(status.report()), "at an unnamed place");
  status.set_place({.phase = "saving"});
  EXPECT_EQ(describe(decode_report(encode(status.report()))), "at saving");
}

TEST(RankStatus, LongWorkNestsAndEnds) {
  RankStatus status;
  EXPECT_EQ(status.report().since_long_work, -1);
  {
    const ScopedLongWork outer(status, "saving");
    { const ScopedLongWork inner(status, "hashing"); }
    EXPECT_EQ(status.report().long_work, "saving");
    EXPECT_EQ(status.report().since_long_work, 0);
    EXPECT_EQ(describe(status.report()), "at an unnamed place, in declared long work: saving");
  }
  EXPECT_EQ(status.report().long_work, "");
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(status.report().since_long_work, 5);
}

TEST(RankStatus, WhoWaitsDoesNotWork) {
  RankStatus status;
  const ScopedLongWork work(status, "saving");
  status.set_waiting_for("barrier 2 of world");
  std::this_thread::sleep_for(std::chrono::milliseconds(6));
  EXPECT_GE(status.report().since_long_work, 5);
  EXPECT_EQ(status.report().long_work, "");
  status.set_waiting_for("");
  EXPECT_EQ(status.report().since_long_work, 0);
  EXPECT_EQ(status.report().long_work, "saving");
}

TEST(RankStatus, LongWorkBeyondItsLimitIsNone) {
  RankStatus status;
  const ScopedLongWork work(status, "tokenising", std::chrono::milliseconds(1));
  std::this_thread::sleep_for(std::chrono::milliseconds(6));
  EXPECT_EQ(status.report().long_work, "");
  EXPECT_GE(status.report().since_long_work, 5);
}

// Text from anywhere, such as a path in a phase, must not end the one that reports it.
TEST(RankStatus, AnyTextTravels) {
  RankStatus status;
  status.set_place({.phase = "reading \"a\\b\"\n\xff"});
  EXPECT_NO_THROW(decode_report(encode(status.report())));
}

} // namespace
} // namespace palimpsest
