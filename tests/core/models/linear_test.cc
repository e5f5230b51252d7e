#include <palimpsest/core/models/linear.h>

#include <palimpsest/core/models/param_ref.h>
#include <palimpsest/core/models/weight_jobs.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
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
        .weight = made.refs[0],
        .bias = made.refs[1],
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
  const at::Tensor base = at::matmul(x_, layer_.weight.view().t()) + layer_.bias.view() + residual;
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
  at::Tensor wanted = at::matmul(x_, layer_.weight.view().t()) + layer_.bias.view();
  wanted.narrow(1, kFirst, kSecond).add_(at::matmul(at::matmul(x_, a().t()), b().t()), kScale);
  expect_near(layer_.forward(x_, context(/*training=*/false)), wanted);
}

TEST_P(AdaptedLinear, GoesBackThroughBothWays) {
  const at::Tensor wanted = at::matmul(dy_, layer_.weight.view()) +
      kScale * factors() * at::matmul(at::matmul(upstream(), b()), a());
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
  plain.weight = layer_.adapters[0].a; // one that is trained
  EXPECT_EQ(plain.backward_flops(kRows), 2 * 2 * kRows * kRank * kIn);
}

INSTANTIATE_TEST_SUITE_P(Dropout, AdaptedLinear, testing::Values(0.0, 0.4));

} // namespace
} // namespace palimpsest
