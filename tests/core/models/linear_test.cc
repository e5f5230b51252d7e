#include <palimpsest/core/models/linear.h>

#include <palimpsest/core/models/param_ref.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

// Covers: core/models/dropout_use.cc

constexpr int64_t kSequences = 3;
constexpr int64_t kPositions = 5;
constexpr int64_t kIn = 12;
constexpr int64_t kFirst = 8; // outputs of the first of two fused weights
constexpr int64_t kSecond = 6;
constexpr int64_t kRank = 2;
constexpr double kScale = 1.5;

bool is_adapter(const std::string& name) {
  return name.find("lora") != std::string::npos;
}

/// Two fused weights with a bias, the second one with an adapter; all values random.
class AdaptedLinear : public testing::TestWithParam<double> {
 protected:
  AdaptedLinear() {
    const BlockUnits made = add_units(
        chain_,
        "unit",
        {{{.name = "first", .shape = {kFirst, kIn}}, {.name = "second", .shape = {kSecond, kIn}}},
         {{.name = "bias", .shape = {kFirst + kSecond}}},
         {{.name = "lora_A", .shape = {kRank, kIn}}},
         {{.name = "lora_B", .shape = {kSecond, kRank}}}},
        at::kFloat,
        is_adapter);
    layer_ = {
        .products = {{.weight = made.refs[0], .bias = made.refs[1]}},
        .adapters = {
            {.a = made.refs[2],
             .b = made.refs[3],
             .first = kFirst,
             .scale = kScale,
             .dropout = GetParam(),
             .block = 7,
             .call = 16}}};
    for (const auto& unit : chain_.units) {
      unit->bind_data(at::randn({unit->numel()}));
    }
    trained().bind_fresh_grad(at::ones({trained().numel()}));
    batch_.rows = at::arange(4, 4 + kSequences, at::kLong);
  }

  ParamUnit& trained() {
    return *chain_.units[0];
  }
  BlockContext context(bool training = true) const {
    return {.batch = &batch_, .seed = 5, .step = 3, .training = training};
  }
  at::Tensor weight() const {
    return layer_.products[0].weight.view();
  }
  at::Tensor bias() const {
    return layer_.products[0].bias.view();
  }
  at::Tensor a() const {
    return layer_.adapters[0].a.view();
  }
  at::Tensor b() const {
    return layer_.adapters[0].b.view();
  }
  /// What dropout multiplies x with, rows [R,K].
  at::Tensor factors() const {
    return kernels::dropout_factors(
               kPositions,
               kIn,
               GetParam(),
               {.seed = 5, .step = 3, .block = 7, .call = 16},
               batch_.rows)
        .view(x_.sizes());
  }
  /// Of the second weight's outputs.
  at::Tensor upstream() const {
    return dy_.narrow(1, kFirst, kSecond);
  }

  Chain chain_;
  Linear layer_;
  MicroBatch batch_;
  at::Tensor x_ = at::randn({kSequences * kPositions, kIn});
  at::Tensor dy_ = at::randn({kSequences * kPositions, kFirst + kSecond});
};

void expect_near(const at::Tensor& got, const at::Tensor& wanted) {
  ASSERT_EQ(got.sizes(), wanted.sizes());
  EXPECT_LT((got - wanted).abs().max().item<double>(), 1e-5 * wanted.abs().max().item<double>());
}

TEST_P(AdaptedLinear, AddsToItsOutputsAlone) {
  const at::Tensor residual = at::randn({x_.size(0), kFirst + kSecond});
  const at::Tensor base = at::matmul(x_, weight().t()) + bias() + residual;
  at::Tensor wanted = base.clone();
  wanted.narrow(1, kFirst, kSecond)
      .add_(at::matmul(at::matmul(x_ * factors(), a().t()), b().t()), kScale);
  const at::Tensor got = layer_.forward(x_, context(), residual);
  expect_near(got, wanted);
  // no adapter changed a bit of the other weight's outputs
  Linear plain = layer_;
  plain.adapters.clear();
  EXPECT_TRUE(
      got.narrow(1, 0, kFirst).equal(plain.forward(x_, context(), residual).narrow(1, 0, kFirst)));
}

TEST_P(AdaptedLinear, DropsNothingOutsideTraining) {
  at::Tensor wanted = at::matmul(x_, weight().t()) + bias();
  wanted.narrow(1, kFirst, kSecond).add_(at::matmul(at::matmul(x_, a().t()), b().t()), kScale);
  expect_near(layer_.forward(x_, context(/*training=*/false)), wanted);
}

TEST_P(AdaptedLinear, GoesBackThroughBothWays) {
  const at::Tensor wanted =
      at::matmul(dy_, weight()) + kScale * factors() * at::matmul(at::matmul(upstream(), b()), a());
  expect_near(layer_.backward_input(dy_, context()), wanted);
}

TEST_P(AdaptedLinear, AddsGradientsNowOrLaterWithTheSameBits) {
  const at::Tensor kept = x_ * factors();
  const at::Tensor grad_a = kScale * at::matmul(at::matmul(upstream(), b()).t(), kept);
  const at::Tensor grad_b = kScale * at::matmul(upstream().t(), at::matmul(kept, a().t()));
  std::vector<at::Tensor> flat;
  for (const bool deferred : {false, true}) {
    trained().bind_fresh_grad(at::ones({trained().numel()}));
    WeightJobs jobs;
    jobs.defer(deferred);
    jobs.linear(dy_, x_, layer_, context());
    EXPECT_EQ(jobs.tensors().size(), deferred ? 4 : 0); // dy, x and both by A and B
    const at::Tensor data = trained().data();
    trained().bind_data({}); // a later part of the plan has no parameters
    jobs.run();
    trained().bind_data(data);
    jobs.linear(dy_, x_, layer_, context()); // a second time, added
    jobs.run();
    trained().settle_grad();
    expect_near(layer_.adapters[0].a.grad(), 2 * grad_a);
    expect_near(layer_.adapters[0].b.grad(), 2 * grad_b);
    flat.push_back(trained().grad().clone());
  }
  EXPECT_TRUE(flat[0].equal(flat[1]));
}

TEST_P(AdaptedLinear, TakesMicroBatchesWithoutRows) {
  batch_.rows = at::zeros({0}, at::kLong);
  EXPECT_EQ(layer_.forward(x_.narrow(0, 0, 0), context()).size(0), 0);
  EXPECT_EQ(layer_.backward_input(dy_.narrow(0, 0, 0), context()).size(0), 0);
}

TEST_P(AdaptedLinear, KnowsWhatItsGradientsNeedAndWhatItCosts) {
  EXPECT_TRUE(layer_.backward_reads_input());
  constexpr double kRows = 10;
  constexpr double kFrozen = 2 * kRows * kIn * (kFirst + kSecond);
  constexpr double kAdapter = 2 * kRows * kRank * (kIn + kSecond);
  EXPECT_EQ(layer_.forward_flops(kRows), kFrozen + kAdapter);
  EXPECT_EQ(layer_.backward_flops(kRows), kFrozen + 2 * kAdapter);
  Linear plain = layer_;
  plain.adapters.clear();
  EXPECT_EQ(plain.backward_flops(kRows), kFrozen);
  EXPECT_FALSE(plain.backward_reads_input());
  EXPECT_NE(plain.kind(), layer_.kind());
  plain.products[0].weight = layer_.adapters[0].a; // one that is trained
  EXPECT_EQ(plain.backward_flops(kRows), 2 * 2 * kRows * kRank * kIn);
}

INSTANTIATE_TEST_SUITE_P(Dropout, AdaptedLinear, testing::Values(0.0, 0.4));

/// Three weights with biases of which the middle weight and the last bias are frozen: other neighbours
/// in their units, one layer of 20 outputs.
class LinearOfProducts : public testing::Test {
 protected:
  static constexpr int64_t kOutputs[3] = {8, 5, 7};

  LinearOfProducts() {
    std::vector<std::vector<Parameter>> groups;
    for (const int64_t outputs : kOutputs) {
      const std::string name = std::to_string(outputs);
      groups.push_back({{.name = name, .shape = {outputs, kIn}}});
      groups.push_back({{.name = name + ".bias", .shape = {outputs}}});
    }
    const BlockUnits made =
        add_units(chain_, "unit", groups, at::kFloat, [](const std::string& name) {
          return name != "5" && name != "7.bias";
        });
    int64_t first = 0;
    for (size_t index = 0; index < 3; ++index) {
      layer_.products.push_back(
          {.weight = made.refs[2 * index], .bias = made.refs[2 * index + 1], .first = first});
      first += kOutputs[index];
    }
    for (const auto& unit : chain_.units) {
      unit->bind_data(at::randn({unit->numel()}));
    }
    for (const Product& product : layer_.products) {
      weights_.push_back(product.weight.view());
      biases_.push_back(product.bias.view());
    }
  }

  Chain chain_;
  Linear layer_;
  std::vector<at::Tensor> weights_;
  std::vector<at::Tensor> biases_;
  at::Tensor x_ = at::randn({9, kIn});
  at::Tensor dy_ = at::randn({9, 20});
};

TEST_F(LinearOfProducts, IsTheLayerOfAllTheirWeights) {
  const at::Tensor residual = at::randn({9, 20});
  expect_near(
      layer_.forward(x_, {}, residual),
      at::matmul(x_, at::cat(weights_).t()) + at::cat(biases_) + residual);
  expect_near(layer_.backward_input(dy_, {}), at::matmul(dy_, at::cat(weights_)));
}

TEST_F(LinearOfProducts, MakesGradientsOfWhatIsTrainedNowOrLaterWithTheSameBits) {
  ParamUnit& trained = *chain_.units[0];
  ASSERT_EQ(trained.numel(), (8 + 7) * kIn + 8 + 5);
  std::vector<at::Tensor> flat;
  for (const bool deferred : {false, true}) {
    trained.bind_fresh_grad(at::ones({trained.numel()}));
    WeightJobs jobs;
    jobs.defer(deferred);
    for (int times = 0; times < 2; ++times) {
      jobs.linear(dy_, x_, layer_, {});
    }
    jobs.run();
    trained.settle_grad();
    flat.push_back(trained.grad().clone());
  }
  EXPECT_TRUE(flat[0].equal(flat[1]));
  const auto upstream = [&](size_t index) { return layer_.products[index].outputs(dy_); };
  for (const size_t index : {0, 2}) {
    expect_near(layer_.products[index].weight.grad(), 2 * at::matmul(upstream(index).t(), x_));
  }
  for (const size_t index : {0, 1}) {
    expect_near(layer_.products[index].bias.grad(), 2 * upstream(index).sum(0));
  }
}

TEST_F(LinearOfProducts, CountsWhatItsBackwardDoes) {
  EXPECT_TRUE(layer_.backward_reads_input());
  EXPECT_EQ(layer_.forward_flops(10), 2 * 10 * kIn * 20);
  EXPECT_EQ(layer_.backward_flops(10), 2 * 10 * kIn * (20 + 8 + 7));
  layer_.products = {layer_.products[1]};
  EXPECT_FALSE(layer_.backward_reads_input());
}

} // namespace
} // namespace palimpsest
