#include <palimpsest/core/engine/loss_scaler.h>

#include <palimpsest/tests/core/optim/golden.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(LossScaler, FollowsTorchsGradScaler) {
  const nlohmann::json traces = golden("gradscaler.json");
  ASSERT_FALSE(traces.empty());
  for (const auto& trace : traces) {
    LossScaler scaler({
        .initial = trace.at("init_scale"),
        .growth_factor = trace.at("growth_factor"),
        .backoff_factor = trace.at("backoff_factor"),
        .growth_interval = trace.at("growth_interval"),
        .minimum = 1e-9, // it has none
    });
    for (size_t step = 0; step < trace.at("overflow").size(); ++step) {
      scaler.update(!trace.at("overflow").at(step).get<bool>());
      EXPECT_EQ(scaler.scale(), trace.at("scale_after").at(step).get<double>()) << step;
      EXPECT_EQ(scaler.state().good_steps, trace.at("growth_tracker_after").at(step).get<int64_t>())
          << step;
    }
    EXPECT_FALSE(scaler.exhausted());
  }
}

// As Megatron-LM's DynamicGradScaler: the first overflows are let pass, and once they are used up
// each one shrinks the scale, until it grows.
TEST(LossScaler, HysteresisLetsOverflowsPass) {
  LossScaler scaler({.initial = 64, .growth_interval = 2, .hysteresis = 2});
  const auto after = [&](bool finite) {
    scaler.update(finite);
    return scaler.scale();
  };
  EXPECT_EQ(after(false), 64);
  EXPECT_EQ(after(true), 64); // one good step does not give it back
  EXPECT_EQ(after(false), 32);
  EXPECT_EQ(after(false), 16);
  EXPECT_EQ(after(true), 16);
  EXPECT_EQ(after(true), 32); // grown, so counted anew
  EXPECT_EQ(after(false), 32);
  EXPECT_EQ(after(false), 16);
}

TEST(LossScaler, StopsAtItsMinimum) {
  LossScaler scaler({.initial = 10, .backoff_factor = 0.5, .minimum = 4});
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 5);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 4); // not 2.5
  EXPECT_FALSE(scaler.exhausted());
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 4);
  EXPECT_TRUE(scaler.exhausted());
}

TEST(LossScaler, StaysFinite) {
  LossScaler scaler({.initial = 1e38, .growth_factor = 4, .growth_interval = 1});
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1e38);
}

TEST(LossScaler, AFixedScaleStays) {
  LossScaler scaler({.fixed = 128, .growth_interval = 1, .minimum = 1});
  scaler.update(true);
  scaler.update(false);
  EXPECT_EQ(scaler.scale(), 128);
  EXPECT_FALSE(scaler.exhausted());
}

TEST(LossScaler, GoesOnFromItsState) {
  const LossScaling settings{.initial = 64, .growth_interval = 3, .hysteresis = 2};
  LossScaler whole(settings);
  LossScaler first(settings);
  const std::vector<bool> finite = {true, false, true, true, false, false, true, true, true, false};
  for (size_t step = 0; step < finite.size(); ++step) {
    if (step == 4) {
      first = LossScaler(settings, first.state());
    }
    whole.update(finite[step]);
    first.update(finite[step]);
    EXPECT_EQ(first.state(), whole.state()) << step;
  }
}

} // namespace
} // namespace palimpsest
