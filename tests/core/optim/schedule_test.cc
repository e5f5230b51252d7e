#include <palimpsest/core/optim/schedule.h>

#include <palimpsest/core/base/error.h>

#include <nlohmann/json.hpp>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const nlohmann::json& golden_schedules() {
  static const nlohmann::json data = [] {
    std::ifstream stream(std::string(PALIMPSEST_TEST_DATA) + "/optim/schedules.json");
    return nlohmann::json::parse(stream).at("data");
  }();
  return data;
}

/// Our settings for a case of the golden file, from the arguments that transformers was given.
ScheduleSettings settings_of(const nlohmann::json& golden) {
  const std::string function = golden.at("function");
  const nlohmann::json& args = golden.at("args");
  const int64_t total = golden_schedules().at("total_steps");
  ScheduleSettings settings{.total_steps = total, .warmup_steps = args.at("num_warmup_steps")};
  if (function == "get_wsd_schedule") {
    settings.name = "wsd";
    settings.decay = args.value("decay_type", "cosine");
    settings.decay_ratio = args.at("num_decay_steps").get<double>() / static_cast<double>(total);
    settings.min_ratio = args.value("min_lr_ratio", 0.0);
  } else {
    settings.name = function.substr(4, function.find('_', 4) - 4); // get_cosine_schedule...: cosine
    settings.min_ratio = args.value("min_lr_rate", 0.0);
  }
  return settings;
}

TEST(LearningRateSchedule, EqualsTransformers) {
  const double peak = golden_schedules().at("base_lr");
  const int64_t total = golden_schedules().at("total_steps");
  int compared = 0;
  for (const auto& [name, golden] : golden_schedules().at("cases").items()) {
    const LearningRateSchedule schedule(settings_of(golden));
    const std::vector<double> rates = golden.at("lr");
    for (size_t k = 0; k < rates.size(); ++k) {
      // Their cosine rises again behind the end; ours stays.
      const bool rises = name.starts_with("cosine") && std::cmp_greater(k, total);
      const double expected = rises ? rates[static_cast<size_t>(total)] : rates[k];
      EXPECT_NEAR(peak * schedule.factor(static_cast<int64_t>(k)), expected, 1e-12) << name << k;
      ++compared;
    }
  }
  EXPECT_EQ(compared, 14 * 25);
}

TEST(LearningRateSchedule, CosineEndsAtItsFloorAndStaysThere) {
  const LearningRateSchedule to_zero({.name = "cosine", .total_steps = 10});
  EXPECT_NEAR(to_zero.factor(5), 0.5, 1e-12);
  EXPECT_NEAR(to_zero.factor(7), 0.206107, 1e-6);
  EXPECT_EQ(to_zero.factor(10), 0);
  EXPECT_EQ(to_zero.factor(12), 0);
  const LearningRateSchedule to_floor(
      {.name = "cosine", .total_steps = 100, .warmup_steps = 10, .min_ratio = 0.1});
  EXPECT_NEAR(to_floor.factor(55), 0.55, 1e-12);
  EXPECT_NEAR(to_floor.factor(1000), 0.1, 1e-12);
}

TEST(LearningRateSchedule, WarmUpReachesThePeakAtItsLength) {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    const LearningRateSchedule schedule({.name = name, .total_steps = 100, .warmup_steps = 10});
    EXPECT_EQ(schedule.factor(0), 0) << name;
    EXPECT_NEAR(1e-3 * schedule.factor(5), 5e-4, 1e-15) << name;
    EXPECT_EQ(1e-3 * schedule.factor(10), 1e-3) << name;
  }
}

TEST(LearningRateSchedule, LinearHasAFloorToo) {
  const LearningRateSchedule schedule({.name = "linear", .total_steps = 10, .min_ratio = 0.2});
  EXPECT_NEAR(schedule.factor(5), 0.6, 1e-12);
  EXPECT_NEAR(schedule.factor(10), 0.2, 1e-12);
  EXPECT_NEAR(schedule.factor(11), 0.2, 1e-12);
}

TEST(LearningRateSchedule, RatiosRoundUpToWholeSteps) {
  const auto warmup = [](double ratio, int64_t total) {
    return LearningRateSchedule({.name = "linear", .total_steps = total, .warmup_ratio = ratio})
        .warmup_steps();
  };
  EXPECT_EQ(warmup(0.03, 100), 3);
  EXPECT_EQ(warmup(0.07, 100), 7); // 0.07 * 100 is 7.000000000000001 in double
  EXPECT_EQ(warmup(0.03, 10), 1);
  EXPECT_EQ(warmup(0, 10), 0);
  EXPECT_EQ(warmup(1, 10), 10);
  EXPECT_EQ(LearningRateSchedule({.name = "wsd", .total_steps = 25}).decay_steps(), 3);
  EXPECT_EQ(
      LearningRateSchedule({.total_steps = 100, .warmup_steps = 5, .warmup_ratio = 0.5})
          .warmup_steps(),
      5);
}

TEST(LearningRateSchedule, IsAFractionEverywhere) {
  for (const char* name : {"constant", "linear", "cosine", "wsd"}) {
    for (const int64_t total : {1, 2, 7, 100}) {
      for (const double warmup : {0.0, 0.5, 0.9}) {
        const LearningRateSchedule schedule(
            {.name = name, .total_steps = total, .warmup_ratio = warmup, .decay_ratio = 0});
        for (int64_t k = 0; k < total + 3; ++k) {
          EXPECT_GE(schedule.factor(k), 0) << name << " " << total << " " << k;
          EXPECT_LE(schedule.factor(k), 1) << name << " " << total << " " << k;
        }
      }
    }
  }
}

void expect_refused(const ScheduleSettings& settings, const std::string& part) {
  EXPECT_THAT([&] { LearningRateSchedule{settings}; }, ThrowsMessage<UserError>(HasSubstr(part)));
}

TEST(LearningRateSchedule, RefusesWhatMakesNoSense) {
  expect_refused({.name = "cosin"}, "scheduler.name: \"cosin\"");
  expect_refused({.name = "wsd", .decay = "cubic"}, "scheduler.decay: \"cubic\"");
  expect_refused({.total_steps = 10, .warmup_steps = 11}, "scheduler.warmup_steps: 11");
  expect_refused({.total_steps = 10, .warmup_steps = -1}, "scheduler.warmup_steps: -1");
  expect_refused({.total_steps = 10, .warmup_ratio = 1.5}, "scheduler.warmup_ratio: 1.5");
  expect_refused({.name = "linear", .min_ratio = NAN}, "scheduler.min_ratio: nan");
  expect_refused({.min_ratio = 0.1}, "constant");
  expect_refused(
      {.name = "wsd", .total_steps = 10, .warmup_steps = 8, .decay_ratio = 0.3},
      "8 steps and a decay of 3");
}

} // namespace
} // namespace palimpsest
