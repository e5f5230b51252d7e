#include <palimpsest/core/models/rotary_cache.h>

#include <palimpsest/core/io/rope.h>

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

namespace palimpsest {
namespace {

constexpr int64_t kHeadDim = 16;
constexpr int64_t kTrained = 32;

/// The table's first `length` positions against cos and sin of position times frequency.
void expect_table(RotaryCache& cache, const RopeConfig& rope, int64_t length) {
  const kernels::RotaryTable& table = cache.table(length);
  const RopeTable expected = rope_table(rope, kHeadDim, kTrained, length);
  ASSERT_GE(table.cos().size(0), length);
  const float* cosines = table.cos().const_data_ptr<float>();
  const float* sines = table.sin().const_data_ptr<float>();
  for (int64_t position = 0; position < length; ++position) {
    for (int64_t pair = 0; pair < kHeadDim / 2; ++pair) {
      const double angle =
          static_cast<double>(position) * expected.inverse_frequencies[static_cast<size_t>(pair)];
      const int64_t index = position * kHeadDim / 2 + pair;
      EXPECT_NEAR(cosines[index], std::cos(angle) * expected.attention_scaling, 1e-5);
      EXPECT_NEAR(sines[index], std::sin(angle) * expected.attention_scaling, 1e-5);
    }
  }
}

TEST(RotaryCache, FollowsEveryTypeWhateverLengthCameBefore) {
  RopeConfig yarn{.type = RopeType::kYarn, .factor = 4};
  RopeConfig dynamic{.type = RopeType::kDynamic, .factor = 4};
  RopeConfig linear{.type = RopeType::kLinear, .factor = 4};
  for (const RopeConfig& rope : {RopeConfig{}, linear, yarn, dynamic}) {
    RotaryCache cache(rope, kHeadDim, kTrained);
    for (const int64_t length : {8, 32, 64, 48, 16}) {
      SCOPED_TRACE(std::string(name_of(rope.type)) + " " + std::to_string(length));
      expect_table(cache, rope, length);
    }
  }
}

TEST(RotaryCache, YarnScalesAndDynamicMovesItsFrequencies) {
  RotaryCache yarn({.type = RopeType::kYarn, .factor = 4}, kHeadDim, kTrained);
  EXPECT_NEAR(
      yarn.table(4).cos().const_data_ptr<float>()[0], 0.1 * std::log(4.0) + 1, 1e-6); // position 0
  RotaryCache dynamic({.type = RopeType::kDynamic, .factor = 4}, kHeadDim, kTrained);
  // The last pair at position 1, within and beyond what the model was trained with.
  const int64_t last = kHeadDim / 2 + kHeadDim / 2 - 1;
  const float within = dynamic.table(kTrained).sin().const_data_ptr<float>()[last];
  const float beyond = dynamic.table(2 * kTrained).sin().const_data_ptr<float>()[last];
  EXPECT_LT(beyond, within);
  EXPECT_EQ(dynamic.table(kTrained).sin().const_data_ptr<float>()[last], within);
}

TEST(RotaryCache, ARowIsThatOfTheTableForItsLength) {
  RopeConfig yarn{.type = RopeType::kYarn, .factor = 4};
  RopeConfig dynamic{.type = RopeType::kDynamic, .factor = 4};
  const std::vector<TokenPlace> places = {{0, 5}, {4, 5}, {50, 51}, {7, 64}, {63, 64}, {30, 31}};
  for (const RopeConfig& rope : {RopeConfig{}, yarn, dynamic}) {
    RotaryCache cache(rope, kHeadDim, kTrained);
    const kernels::RotaryTable rows = cache.rows(places);
    ASSERT_EQ(rows.cos().size(0), std::ssize(places));
    for (int64_t row = 0; row < std::ssize(places); ++row) {
      const auto [position, length] = places[static_cast<size_t>(row)];
      const kernels::RotaryTable& table = cache.table(length);
      for (int64_t pair = 0; pair < kHeadDim / 2; ++pair) {
        const int64_t from = position * kHeadDim / 2 + pair;
        const int64_t to = row * kHeadDim / 2 + pair;
        const auto at = [](const at::Tensor& values, int64_t index) {
          return values.const_data_ptr<float>()[index];
        };
        EXPECT_NEAR(at(rows.cos(), to), at(table.cos(), from), 1e-6);
        EXPECT_NEAR(at(rows.sin(), to), at(table.sin(), from), 1e-6);
      }
    }
  }
}

} // namespace
} // namespace palimpsest
