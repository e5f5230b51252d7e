#include <palimpsest/memory/report/metrics.h>

#include <palimpsest/core/base/error.h>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

StepRecord a_record() {
  return {
      .step = 12,
      .loss = 0.1,
      .grad_norm = 1e-300,
      .learning_rate = 2e-5,
      .skipped = false,
      .tokens = int64_t{1} << 53,
      .step_time_s = 0.25,
      .data_wait_s = 0.125,
      .tokens_per_s = 4096.5,
      .peak_device_bytes = (int64_t{1} << 62) + 1,
      .peak_rss_bytes = 7};
}

class MetricsWriterTest : public ::testing::Test {
 protected:
  MetricsWriterTest() {
    folder_ =
        std::filesystem::temp_directory_path() / ("palimpsest-metrics-" + std::to_string(getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~MetricsWriterTest() override {
    std::filesystem::remove_all(folder_);
  }
  std::vector<std::string> lines(const std::filesystem::path& path) const {
    std::ifstream file(path);
    std::vector<std::string> found;
    for (std::string line; std::getline(file, line);) {
      found.push_back(line);
    }
    return found;
  }
  std::filesystem::path folder_;
};

TEST(JsonLine, HasEveryFieldOnceAndLosesNoBit) {
  const StepRecord record = a_record();
  const std::string line = to_json_line(record);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::ordered_json::parse(line);
  std::vector<std::string> keys;
  for (const auto& [key, value] : json.items()) {
    keys.push_back(key);
  }
  EXPECT_EQ(
      keys,
      (std::vector<std::string>{
          "step",
          "loss",
          "grad_norm",
          "learning_rate",
          "skipped",
          "tokens",
          "step_time_s",
          "data_wait_s",
          "tokens_per_s",
          "peak_device_bytes",
          "peak_rss_bytes"}));
  EXPECT_EQ(json["step"], 12);
  EXPECT_EQ(json["loss"].get<double>(), 0.1);
  EXPECT_EQ(json["grad_norm"].get<double>(), 1e-300);
  EXPECT_EQ(json["learning_rate"].get<double>(), 2e-5);
  EXPECT_EQ(json["skipped"], false);
  EXPECT_EQ(json["tokens"].get<int64_t>(), record.tokens);
  EXPECT_EQ(json["data_wait_s"].get<double>(), 0.125);
  EXPECT_EQ(json["tokens_per_s"].get<double>(), 4096.5);
  EXPECT_EQ(json["peak_device_bytes"].get<int64_t>(), record.peak_device_bytes);
}

TEST(JsonLine, WhatIsNotFiniteIsNull) {
  for (const double number :
       {std::numeric_limits<double>::infinity(),
        -std::numeric_limits<double>::infinity(),
        std::nan("")}) {
    StepRecord record = a_record();
    record.loss = record.grad_norm = number;
    record.skipped = true;
    const auto json = nlohmann::json::parse(to_json_line(record));
    EXPECT_TRUE(json["loss"].is_null());
    EXPECT_TRUE(json["grad_norm"].is_null());
    EXPECT_EQ(json["skipped"], true);
    EXPECT_EQ(json.size(), 11U);
  }
}

TEST(JsonLine, HasTheMfuWhereItIsKnown) {
  EXPECT_FALSE(nlohmann::json::parse(to_json_line(a_record())).contains("mfu"));
  EXPECT_EQ(nlohmann::json::parse(to_json_line(a_record(), 0.375))["mfu"], 0.375);
}

TEST(JsonLine, OfAnEvaluationHasItsStepAndFieldsOfItsOwn) {
  const EvaluationRecord record{
      .step = 12,
      .loss = 2.5,
      .perplexity = 12.25,
      .samples = 7,
      .targets = 300,
      .time_s = 0.5,
      .best = true};
  EXPECT_EQ(
      to_json_line(record),
      R"({"step":12,"eval_loss":2.5,"eval_perplexity":12.25,"eval_samples":7,"eval_targets":300,)"
      R"("eval_time_s":0.5,"best":true})");
  EXPECT_EQ(
      to_json_line(EvaluationRecord{.step = 3, .loss = std::nan("")}),
      R"({"step":3,"eval_loss":null,"eval_samples":0,"eval_targets":0,"eval_time_s":0.0,"best":false})");
}

TEST_F(MetricsWriterTest, ALineIsThereWhenItsStepIsOver) {
  const std::filesystem::path path = folder_ / "metrics.jsonl";
  std::ofstream(path) << "another run's\n";
  MetricsWriter writer(path);
  EXPECT_TRUE(lines(path).empty()); // it begins anew
  StepRecord record = a_record();
  for (size_t step = 1; step <= 3; ++step) {
    record.step = static_cast<int64_t>(step);
    writer.step_end(record);
    ASSERT_EQ(lines(path).size(), step);
    EXPECT_EQ(nlohmann::json::parse(lines(path).back())["step"], step);
  }
}

TEST_F(MetricsWriterTest, APathThatCannotBeWrittenIsNamedWithTheReason) {
  const std::string missing = (folder_ / "no" / "metrics.jsonl").string();
  EXPECT_THAT(
      [&] { MetricsWriter{missing}; },
      ThrowsMessage<EnvironmentError>(AllOf(HasSubstr(missing), HasSubstr("No such file"))));
  EXPECT_THAT(
      [&] { MetricsWriter{folder_}; },
      ThrowsMessage<EnvironmentError>(AllOf(HasSubstr(folder_), HasSubstr("Is a directory"))));
}

TEST(MetricsWriter, AFullDiskIsNamedWithItsStep) {
  MetricsWriter writer("/dev/full");
  EXPECT_THAT(
      [&] { writer.step_end(a_record()); },
      ThrowsMessage<EnvironmentError>(
          HasSubstr("cannot write step 12 to /dev/full: No space left on device")));
}

// A run that was killed after step 4, in the middle of a line, and goes on from step 2.
TEST_F(MetricsWriterTest, AResumedRunKeepsTheLinesOfItsPast) {
  const std::filesystem::path path = folder_ / "metrics.jsonl";
  {
    MetricsWriter writer(path);
    for (const int64_t step : {1, 2, 3, 4}) {
      writer.step_end({.step = step});
      if (step % 2 == 0) {
        writer.evaluation_end({.step = step, .loss = 1});
      }
    }
  }
  std::ofstream(path, std::ios::app) << R"({"step": 5, "lo)";
  {
    MetricsWriter writer(path, 2);
    writer.step_end({.step = 3, .loss = 7});
  }
  const std::vector<std::string> found = lines(path);
  ASSERT_EQ(found.size(), 4U);
  EXPECT_EQ(found[1], to_json_line(StepRecord{.step = 2}));
  EXPECT_EQ(found[2], to_json_line(EvaluationRecord{.step = 2, .loss = 1}));
  EXPECT_EQ(found[3], to_json_line(StepRecord{.step = 3, .loss = 7}));
  MetricsWriter(path, 0).step_end({.step = 1});
  EXPECT_EQ(lines(path).size(), 1U);
}

} // namespace
} // namespace palimpsest
