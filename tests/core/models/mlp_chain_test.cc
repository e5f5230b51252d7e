// Covers: linear_block.cc, squared_error.cc, models.cc
#include <palimpsest/tests/core/models/chain_driver.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/mlp_chain.h>
#include <palimpsest/core/models/models.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

MicroBatch regression_batch(const at::Tensor& inputs, const at::Tensor& targets) {
  return {
      .inputs = inputs,
      .labels = targets,
      .rows = at::arange(inputs.size(0), at::TensorOptions().dtype(at::kLong)),
      .target_count = targets.numel(),
      .token_count = inputs.size(0)};
}

TEST(MlpChain, EqualsAutogradOfTheSameFormula) {
  ChainDriver driver(build_mlp_chain(
      {.widths = {7, 20, 11, 3}, .activation = kernels::Activation::kTanh})); // shrinking too
  initialise_mlp_chain(driver.chain(), 5, driver.source());
  const at::Tensor x = at::randn({13, 7});
  const at::Tensor targets = at::randn({13, 3});
  const StepResult step = driver.run({regression_batch(x, targets)});

  std::vector<at::Tensor> leaves;
  at::Tensor y = x;
  for (int layer = 0; layer < 3; ++layer) {
    const std::string name = "layers." + std::to_string(layer);
    for (const char* kind : {".weight", ".bias"}) {
      leaves.push_back(driver.parameter(name + kind).clone().set_requires_grad(true));
    }
    y = at::linear(y, leaves[leaves.size() - 2], leaves.back());
    y = layer < 2 ? at::tanh(y) : y;
  }
  const at::Tensor loss = (y - targets).pow(2).mean();
  loss.backward();
  EXPECT_NEAR(step.loss_sum / 39, loss.item<double>(), 1e-6);
  for (size_t index = 0; index < leaves.size(); ++index) {
    const std::string name =
        "layers." + std::to_string(index / 2) + (index % 2 == 0 ? ".weight" : ".bias");
    EXPECT_LE(relative_difference(driver.gradient(name), leaves[index].grad()), 1e-5) << name;
  }
}

TEST(MlpChain, RecomputeSplitStashAndRegatherChangeNoBit) {
  ChainDriver driver(build_mlp_chain({.widths = {6, 16, 16, 2}}));
  initialise_mlp_chain(driver.chain(), 5, driver.source());
  const StepBatch batches = {
      regression_batch(at::randn({5, 6}), at::randn({5, 2})),
      regression_batch(at::randn({3, 6}), at::randn({3, 2}))};
  const double loss = driver.run(batches).loss_sum;
  const Tensors plain = driver.gradients();
  for (const DriverOptions& options : std::vector<DriverOptions>{
           {.recompute = true},
           {.split = true, .stash = true},
           {.tape = TapeMode::kLean, .regather = true}}) {
    EXPECT_EQ(driver.run(batches, options).loss_sum, loss);
    EXPECT_TRUE(bitwise_equal(driver.gradients(), plain));
  }
}

TEST(MlpChain, AnEvaluationBetweenStepsChangesNothing) {
  ChainDriver driver(build_mlp_chain({.widths = {1, 1}, .bias = false}));
  at::Tensor weight = driver.parameter("layers.0.weight");
  weight.fill_(1);
  const at::Tensor one = at::full({1, 1}, 1.0F);
  const MicroBatch batch =
      regression_batch(one, at::full({1, 1}, 0.5F)); // d(y - 1/2)^2 = 1 at y = 1
  driver.evaluate({batch});
  driver.run({batch});
  EXPECT_EQ(driver.gradient("layers.0.weight").item<float>(), 1.0F);
  weight.sub_(driver.gradient("layers.0.weight"), 0.5);
  EXPECT_EQ(driver.evaluate({batch}).terminal_inputs[0].item<float>(), 0.5F);
}

TEST(MlpChain, Bf16TakesFp32Features) {
  ChainDriver driver(build_mlp_chain({.widths = {4, 8, 2}, .compute = at::kBFloat16}));
  initialise_mlp_chain(driver.chain(), 5, driver.source());
  driver.run({regression_batch(at::randn({32, 4}), at::randn({32, 2}))});
  const at::Tensor gradient = driver.gradient("layers.0.weight");
  EXPECT_FALSE(gradient.to(at::kBFloat16).to(at::kFloat).equal(gradient));
}

TEST(MlpChain, BadWidthsAreRefused) {
  EXPECT_THROW(build_mlp_chain({.widths = {4}}), UserError);
  EXPECT_THROW(build_mlp_chain({.widths = {4, 0, 1}}), UserError);
}

TEST(Models, FamiliesByName) {
  ModelRegistry families("model.family");
  register_models(families);
  EXPECT_EQ(
      families.names(),
      (std::vector<std::string>{"gemma", "gpt2", "llama", "mistral", "mlp", "qwen2", "qwen3"}));
  EXPECT_EQ(families.at("mlp").build({.mlp = {.widths = {2, 3, 1}}}).blocks.size(), 2U);
  try {
    families.at("lama");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_STREQ(
        error.what(),
        "model.family: 'lama' is unknown; give one of gemma, gpt2, llama, mistral, mlp, qwen2, "
        "qwen3");
  }
}

} // namespace
} // namespace palimpsest
