#include <palimpsest/memory/report/course.h>

#include <palimpsest/memory/report/metrics.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

namespace palimpsest {
namespace {

class CourseTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = make_temporary_folder();
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  std::filesystem::path file() const {
    return folder_ / "metrics.jsonl";
  }
  std::filesystem::path folder_;
};

TEST_F(CourseTest, HasWhatTheRunWrote) {
  {
    MetricsWriter writer(file());
    writer.step_end(
        {.step = 1, .loss = 4.5, .grad_norm = 2, .learning_rate = 1e-3, .tokens_per_s = 100});
    writer.evaluation_end({.step = 1, .loss = 4, .perplexity = 54.5, .best = true});
    writer.step_end({.step = 2, .loss = std::nan(""), .grad_norm = INFINITY, .skipped = true});
    writer.evaluation_end({.step = 2, .loss = std::nan("")});
  }
  std::ofstream(file(), std::ios::app) << R"({"step": 3, "lo)"; // killed in the middle of a line
  const Course course = read_course(file());
  ASSERT_EQ(course.steps.size(), 2U);
  EXPECT_EQ(course.every, 1);
  EXPECT_EQ(course.steps[0].step, 1);
  EXPECT_EQ(course.steps[0].loss, 4.5);
  EXPECT_EQ(course.steps[0].grad_norm, 2);
  EXPECT_EQ(course.steps[0].learning_rate, 1e-3);
  EXPECT_EQ(course.steps[0].tokens_per_s, 100);
  EXPECT_FALSE(course.steps[0].skipped);
  EXPECT_FALSE(course.steps[1].loss.has_value());
  EXPECT_FALSE(course.steps[1].grad_norm.has_value());
  EXPECT_TRUE(course.steps[1].skipped);
  ASSERT_EQ(course.evaluations.size(), 2U);
  EXPECT_EQ(course.evaluations[0].loss, 4);
  EXPECT_EQ(course.evaluations[0].perplexity, 54.5);
  EXPECT_TRUE(course.evaluations[0].best);
  EXPECT_EQ(course.evaluations[1].step, 2);
  EXPECT_FALSE(course.evaluations[1].loss.has_value());
}

// 25 steps, at most 10: every third, and the last. Evaluations all stay.
TEST_F(CourseTest, OfALongRunEverySoManyStepsStay) {
  {
    MetricsWriter writer(file());
    for (int64_t step = 1; step <= 25; ++step) {
      writer.step_end({.step = step});
      writer.evaluation_end({.step = step});
    }
  }
  const Course course = read_course(file(), 10);
  std::vector<int64_t> steps;
  for (const CourseStep& step : course.steps) {
    steps.push_back(step.step);
  }
  EXPECT_EQ(course.every, 3);
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 4, 7, 10, 13, 16, 19, 22, 25}));
  EXPECT_EQ(course.evaluations.size(), 25U);
  EXPECT_EQ(read_course(file(), 24).steps.back().step, 25);
}

TEST_F(CourseTest, IsEmptyWithoutAFile) {
  EXPECT_TRUE(read_course(file()).steps.empty());
}

} // namespace
} // namespace palimpsest
