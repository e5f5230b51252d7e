#include <palimpsest/core/optim/gradient_norm.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/optim/golden.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace palimpsest {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

double norm_of(double p, const std::vector<at::Tensor>& units) {
  const FoldedNorm norm(p);
  std::vector<double> parts;
  for (const at::Tensor& unit : units) {
    const std::vector<double> more = norm.measure(unit);
    parts.insert(parts.end(), more.begin(), more.end());
  }
  return norm.fold(parts);
}

TEST(GradientNorm, JoinsUnitsByTheRuleOfEachNorm) {
  const std::vector<at::Tensor> gradients = {at::tensor({3.0F}), at::tensor({-4.0F})};
  EXPECT_EQ(norm_of(kInfinity, gradients), 4);
  EXPECT_EQ(norm_of(1, gradients), 7);
  EXPECT_EQ(norm_of(2, gradients), 5);
}

TEST(GradientNorm, GroupsAreClippedByOneNorm) {
  // Two groups of norms 3 and 4, several elements each.
  const std::vector<at::Tensor> gradients = {
      at::tensor({1.0F, -2.0F, 2.0F}), at::tensor({2.0F, 2.0F, -2.0F, 2.0F})};
  EXPECT_EQ(norm_of(2, {gradients[0]}), 3);
  EXPECT_EQ(norm_of(2, {gradients[1]}), 4);
  EXPECT_EQ(norm_of(2, gradients), 5);
}

TEST(GradientNorm, HasOnePartPerChunk) {
  std::vector<float> values(2 * 4096 + 1, 1.0F);
  values[4096] = -3.0F;
  const at::Tensor gradient = at::tensor(values);
  EXPECT_THAT(FoldedNorm(2).measure(gradient), testing::ElementsAre(4096, 4104, 1));
  EXPECT_THAT(FoldedNorm(1).measure(gradient), testing::ElementsAre(4096, 4098, 1));
  EXPECT_THAT(FoldedNorm(kInfinity).measure(gradient), testing::ElementsAre(1, 3, 1));
  EXPECT_THAT(FoldedNorm(2).measure(at::tensor(std::vector<float>{})), testing::IsEmpty());
  EXPECT_EQ(FoldedNorm(2).fold({}), 0);
}

TEST(GradientNorm, DoesNotHideWhatIsNotFinite) {
  for (const double p : {1.0, 2.0, kInfinity}) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const size_t place : {0, 5000, 8191}) {
        std::vector<float> values(8192, 1.0F);
        values[place] = bad;
        EXPECT_FALSE(std::isfinite(norm_of(p, {at::tensor(values)}))) << p << bad << place;
      }
    }
  }
}

TEST(GradientNorm, ClipsAsTorch) {
  int cases = 0;
  for (const auto& golden : golden("clip_grad_norm.json")) {
    const double p =
        golden.at("norm_type").is_string() ? kInfinity : golden.at("norm_type").get<double>();
    std::vector<at::Tensor> gradients;
    for (const auto& values : golden.at("grads")) {
      gradients.push_back(to_tensor(values));
    }
    const double norm = norm_of(p, gradients);
    const double expected = golden.at("total_norm");
    EXPECT_NEAR(norm, expected, 1e-6 * expected);
    const double factor = clip_factor(norm, golden.at("max_norm"));
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto clipped = golden.at("clipped").at(i).get<std::vector<double>>();
      for (size_t j = 0; j < clipped.size(); ++j) {
        const double ours = gradients[i].const_data_ptr<float>()[j] * factor;
        EXPECT_NEAR(ours, clipped[j], 1e-6 * std::abs(clipped[j]));
      }
    }
    ++cases;
  }
  EXPECT_EQ(cases, 6);
}

TEST(ClipFactor, NeverEnlargesAndShrinksABitAtTheBorder) {
  EXPECT_EQ(clip_factor(0, 1), 1);
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_DOUBLE_EQ(clip_factor(1, 1), 1 / (1 + 1e-6));
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 1 / (4 + 1e-6));
  EXPECT_EQ(clip_factor(1e30, kInfinity), 1);
}

TEST(GradientNorm, RefusesOtherNorms) {
  for (const double p : {0.0, 0.5, 3.0, -1.0, double{NAN}, -kInfinity}) {
    EXPECT_THROW(FoldedNorm{p}, UserError) << p;
  }
  EXPECT_THAT(
      [] { FoldedNorm{std::string_view("3")}; },
      testing::ThrowsMessage<UserError>(testing::HasSubstr("optimizer.norm_type: \"3\"")));
  EXPECT_EQ(FoldedNorm(std::string_view("inf")).fold({1, 3, 2}), 3);
  EXPECT_EQ(FoldedNorm(std::string_view("1")).fold({1, 3, 2}), 6);
  EXPECT_EQ(FoldedNorm(std::string_view("2")).fold({9, 16}), 5);
}

} // namespace
} // namespace palimpsest
