#include <palimpsest/core/optim/groups.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

const std::vector<std::string> kNames = {"norm.weight", "proj.weight", "proj.bias", "head.weight"};

/// norm.weight [0, 4), proj.weight [4, 16), proj.bias [16, 20), head.weight [20, 28).
ParamUnit unit() {
  return {
      "layer",
      {{"norm.weight", {4}}, {"proj.weight", {3, 4}}, {"proj.bias", {4}}, {"head.weight", {2, 4}}},
      at::kFloat,
      true};
}

testing::Matcher<GroupRange> is_range(int64_t begin, int64_t end, double factor, double decay) {
  return testing::AllOf(
      testing::Field(&GroupRange::begin, begin),
      testing::Field(&GroupRange::end, end),
      testing::Field(&GroupRange::learning_rate_factor, factor),
      testing::Field(&GroupRange::weight_decay, decay));
}

TEST(ParameterGroups, DecayEverythingByDefault) {
  const ParameterGroups groups({}, 0.1, kNames);
  EXPECT_THAT(groups.ranges(unit(), 0, 28), testing::ElementsAre(is_range(0, 28, 1, 0.1)));
}

TEST(ParameterGroups, FirstMatchCounts) {
  const ParameterGroups groups(
      {{.match = "norm|bias$", .weight_decay = 0},
       {.match = "^proj", .learning_rate_multiplier = 2},
       {.match = "weight", .learning_rate_multiplier = 3, .weight_decay = 0.5}},
      0.1,
      kNames);
  EXPECT_EQ(groups.of("norm.weight"), (GroupValues{1, 0}));
  EXPECT_EQ(groups.of("proj.bias"), (GroupValues{1, 0}));
  EXPECT_EQ(groups.of("proj.weight"), (GroupValues{2, 0.1}));
  EXPECT_EQ(groups.of("head.weight"), (GroupValues{3, 0.5}));
  EXPECT_THAT(
      groups.ranges(unit(), 0, 28),
      testing::ElementsAre(
          is_range(0, 4, 1, 0),
          is_range(4, 16, 2, 0.1),
          is_range(16, 20, 1, 0),
          is_range(20, 28, 3, 0.5)));
}

TEST(ParameterGroups, CutToShardsAndCoverPadding) {
  const ParameterGroups groups({{.match = "bias$", .weight_decay = 0}}, 0.1, kNames);
  const ParamUnit layer = unit();
  EXPECT_THAT(
      groups.ranges(layer, 8, 18),
      testing::ElementsAre(is_range(0, 8, 1, 0.1), is_range(8, 10, 1, 0)));
  EXPECT_THAT(
      groups.ranges(layer, 18, 32), // four elements of padding
      testing::ElementsAre(is_range(0, 2, 1, 0), is_range(2, 14, 1, 0.1)));
  EXPECT_THAT(groups.ranges(layer, 32, 40), testing::ElementsAre(is_range(0, 8, 1, 0.1)));
  EXPECT_THAT(groups.ranges(layer, 28, 28), testing::IsEmpty());
}

TEST(ParameterGroups, RefuseRulesWithoutEffect) {
  const auto refused = [](const std::vector<GroupRule>& rules, const std::string& part) {
    EXPECT_THAT(
        [&] { ParameterGroups(rules, 0.1, kNames); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused({{.match = "(norm"}}, "\"(norm\" is not a valid regular expression");
  refused({{.match = "lora"}}, "\"lora\" matches none of the 4 trainable parameters");
  refused({{.match = "proj"}, {.match = "bias"}}, "\"bias\" never counts");
  refused({{.match = std::string(100'000, '(')}}, "is too large");
}

} // namespace
} // namespace palimpsest
