#include <palimpsest/core/optim/adamw.h>

#include <palimpsest/tests/core/optim/golden.h>
#include <palimpsest/tests/core/optim/shards.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include <cmath>
#include <utility>

namespace palimpsest {
namespace {

void follow_trace(const nlohmann::json& golden, bool master) {
  const AdamW optimizer(golden.at("beta1"), golden.at("beta2"), golden.at("eps"));
  ParamShard shard =
      make_shard(to_tensor(golden.at("p0")), optimizer, golden.at("weight_decay"), master);
  const at::Tensor& weights = master ? shard.master : shard.parameters;
  for (size_t k = 0; k < golden.at("grads").size(); ++k) {
    shard.gradient = to_tensor(golden.at("grads").at(k));
    optimizer.step(shard, {.learning_rate = golden.at("lr"), .step = static_cast<int64_t>(k) + 1});
    EXPECT_TRUE(at::allclose(weights, to_tensor(golden.at("params").at(k)), 1e-6, 1e-7)) << k;
    EXPECT_TRUE(at::allclose(shard.moments[0], to_tensor(golden.at("exp_avg").at(k)), 1e-6, 1e-12))
        << k;
    EXPECT_TRUE(
        at::allclose(shard.moments[1], to_tensor(golden.at("exp_avg_sq").at(k)), 1e-6, 1e-24))
        << k;
    if (master) {
      EXPECT_TRUE(at::equal(shard.parameters, shard.master.to(at::kBFloat16))) << k;
    }
  }
}

TEST(AdamW, FollowsTorch) {
  const nlohmann::json traces = golden("optimizers.json").at("adamw");
  ASSERT_EQ(traces.size(), 6);
  for (const auto& trace : traces) {
    follow_trace(trace, false);
    follow_trace(trace, true);
  }
}

TEST(AdamW, ScalesTheGradientFirst) {
  const AdamW optimizer(0.9, 0.999, 1e-8);
  const at::Tensor weights = at::tensor({1.0F, -2.0F, 0.5F});
  ParamShard scaled = make_shard(weights, optimizer, 0, false);
  ParamShard plain = make_shard(weights, optimizer, 0, false);
  scaled.gradient = at::tensor({4.0F, -8.0F, 0.125F});
  plain.gradient = at::tensor({1.0F, -2.0F, 0.03125F});
  optimizer.step(scaled, {.learning_rate = 0.1, .gradient_factor = 0.25});
  optimizer.step(plain, {.learning_rate = 0.1});
  EXPECT_TRUE(at::equal(scaled.parameters, plain.parameters));
  EXPECT_TRUE(at::equal(scaled.moments[1], plain.moments[1]));
}

TEST(AdamW, GivesEachGroupItsValues) {
  // With gradient 0 only decay acts: w (1 - lr * factor * decay).
  const AdamW optimizer(0.9, 0.999, 1e-8);
  ParamShard shard = make_shard(at::full({6}, 2.0F), optimizer, 0, false);
  shard.gradient = at::zeros({6}, at::kFloat);
  shard.groups = {{0, 2, 1, 0.5}, {2, 3, 1, 0}, {3, 6, 2, 0.5}};
  optimizer.step(shard, {.learning_rate = 0.1});
  EXPECT_TRUE(
      at::allclose(shard.parameters, at::tensor({1.9F, 1.9F, 2.0F, 1.8F, 1.8F, 1.8F}), 1e-6, 0));
}

TEST(AdamW, CannotTellAShardFromAWhole) {
  const AdamW optimizer(0.9, 0.95, 1e-8);
  std::vector<float> weights(1000);
  std::vector<float> gradient(1000);
  for (int i = 0; i < 1000; ++i) {
    weights[i] = std::sin(static_cast<float>(i));
    gradient[i] = std::cos(static_cast<float>(3 * i));
  }
  ParamShard whole = make_shard(at::tensor(weights), optimizer, 0.1, true);
  whole.gradient = at::tensor(gradient);
  optimizer.step(whole, {.learning_rate = 0.01, .step = 3});
  for (const auto& [begin, end] : {std::pair{0, 333}, std::pair{333, 334}, std::pair{334, 1000}}) {
    ParamShard part = make_shard(
        at::tensor(std::vector<float>(weights.begin() + begin, weights.begin() + end)),
        optimizer,
        0.1,
        true);
    part.gradient =
        at::tensor(std::vector<float>(gradient.begin() + begin, gradient.begin() + end));
    optimizer.step(part, {.learning_rate = 0.01, .step = 3});
    EXPECT_TRUE(at::equal(part.master, whole.master.slice(0, begin, end)));
    EXPECT_TRUE(at::equal(part.parameters, whole.parameters.slice(0, begin, end)));
  }
}

TEST(AdamW, KeepsTwelveBytesForABf16Parameter) {
  const AdamW optimizer(0.9, 0.999, 1e-8);
  const ParamShard shard = make_shard(at::zeros({5}, at::kFloat), optimizer, 0, true);
  size_t bytes = shard.master.nbytes();
  for (const at::Tensor& moment : shard.moments) {
    bytes += moment.nbytes();
  }
  EXPECT_EQ(bytes, 12 * 5);
}

// 2 of the parameter, 2 + 2 of its moments; with its gradient 8.
TEST(AdamW, UpdatesABf16ParameterInSixBytes) {
  const AdamW optimizer(0.9, 0.999, 1e-8);
  ParamShard shard;
  shard.parameters = at::full({4096}, 1.0, at::kBFloat16);
  shard.gradient = at::full({4096}, 0.5, at::kBFloat16);
  shard.moments = {at::zeros({4096}, at::kBFloat16), at::zeros({4096}, at::kBFloat16)};
  shard.groups = {{.begin = 0, .end = 4096}};
  size_t bytes = shard.parameters.nbytes();
  for (const at::Tensor& moment : shard.moments) {
    bytes += moment.nbytes();
  }
  EXPECT_EQ(bytes, 6U * 4096);
  for (int64_t step = 1; step <= 100; ++step) {
    optimizer.step(shard, {.learning_rate = 1e-3, .step = step, .seed = 42});
  }
  // Of a constant gradient each step is the rate; bf16's distance below 1 is four of them.
  EXPECT_NEAR(shard.parameters.to(at::kDouble).mean().item<double>(), 0.9, 2e-3);
}

TEST(AdamW, KeepsPaddingAtZero) {
  const AdamW optimizer(0.9, 0.999, 1e-8);
  ParamShard shard = make_shard(at::tensor({1.0F, 0.0F, 0.0F}), optimizer, 0.5, false);
  for (int64_t step = 1; step <= 10; ++step) {
    shard.gradient = at::tensor({0.5F, 0.0F, 0.0F});
    optimizer.step(shard, {.learning_rate = 0.1, .step = step});
  }
  EXPECT_TRUE(at::equal(shard.parameters.slice(0, 1, 3), at::zeros({2}, at::kFloat)));
}

} // namespace
} // namespace palimpsest
