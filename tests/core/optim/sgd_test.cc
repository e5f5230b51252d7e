#include <palimpsest/core/optim/sgd.h>

#include <palimpsest/tests/core/optim/golden.h>
#include <palimpsest/tests/core/optim/shards.h>

#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Sgd, FollowsTorch) {
  const nlohmann::json traces = golden("optimizers.json").at("sgd");
  int followed = 0;
  for (const auto& golden : traces) {
    if (golden.at("nesterov").get<bool>() || golden.at("dampening").get<double>() != 0) {
      continue; // not offered
    }
    const Sgd optimizer(golden.at("momentum"));
    ParamShard shard =
        make_shard(to_tensor(golden.at("p0")), optimizer, golden.at("weight_decay"), false);
    for (size_t k = 0; k < golden.at("grads").size(); ++k) {
      shard.gradient = to_tensor(golden.at("grads").at(k));
      optimizer.step(
          shard, {.learning_rate = golden.at("lr"), .step = static_cast<int64_t>(k) + 1});
      EXPECT_TRUE(at::allclose(shard.parameters, to_tensor(golden.at("params").at(k)), 1e-6, 1e-7))
          << k;
      if (optimizer.moment_count() > 0) {
        EXPECT_TRUE(at::allclose(
            shard.moments[0], to_tensor(golden.at("momentum_buffer").at(k)), 1e-6, 1e-12))
            << k;
      }
    }
    ++followed;
  }
  EXPECT_EQ(followed, 2);
}

TEST(Sgd, AddsDecayToTheGradient) {
  // v1 = g + d w0; w1 = w0 - lr v1; v2 = m v1 + g + d w1; w2 = w1 - lr v2.
  const Sgd optimizer(0.5);
  ParamShard shard = make_shard(at::full({1}, 2.0F), optimizer, 0.25, false);
  shard.gradient = at::full({1}, 1.0F);
  optimizer.step(shard, {.learning_rate = 0.5, .step = 1});
  EXPECT_EQ(shard.parameters.item<float>(), 1.25F); // 2 - 0.5 * 1.5
  optimizer.step(shard, {.learning_rate = 0.5, .step = 2});
  EXPECT_EQ(shard.parameters.item<float>(), 0.21875F); // 1.25 - 0.5 * (0.75 + 1 + 0.3125)
}

TEST(Sgd, SmallUpdatesReachTheMasterAndItsCopyFollows) {
  // A bf16 weight of 1 updated directly would never move: its neighbours are 2^-8 away.
  const Sgd optimizer(0);
  ParamShard shard = make_shard(at::full({1}, 1.0F), optimizer, 0, true);
  shard.gradient = at::full({1}, 1.0F);
  float expected = 1;
  for (int64_t step = 1; step <= 1000; ++step) {
    optimizer.step(shard, {.learning_rate = 1e-5, .step = step});
    expected -= 1e-5F;
  }
  EXPECT_NEAR(shard.master.item<float>(), 0.989986, 5e-7);
  EXPECT_EQ(shard.master.item<float>(), expected);
  EXPECT_EQ(shard.parameters.to(at::kFloat).item<float>(), 0.98828125F); // 253 / 256
}

} // namespace
} // namespace palimpsest
