#include <palimpsest/core/models/freeze.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/mlp_chain.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

Chain three_layers(const Freeze& freeze) {
  return build_mlp_chain({.widths = {2, 3, 4, 5}, .trainable = freeze.trainable()});
}

std::vector<std::string> trained(const Chain& chain) {
  std::vector<std::string> names;
  for (const auto& unit : chain.units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (unit->trainable()) {
        names.push_back(parameter.name);
      }
    }
  }
  return names;
}

TEST(Freeze, KeepsWhatAnyExpressionIsFoundIn) {
  const Freeze freeze("training.freeze", {"^layers\\.0", "1\\.bias"});
  const Chain chain = three_layers(freeze);
  freeze.check(chain);
  EXPECT_THAT(trained(chain), ElementsAre("layers.1.weight", "layers.2.weight", "layers.2.bias"));
  EXPECT_EQ(chain.trained_count(), 3 * 4 + 4 * 5 + 5);
}

TEST(Freeze, WithoutExpressionsAllIsTrained) {
  const Freeze freeze("training.freeze", {});
  EXPECT_FALSE(freeze.trainable());
  const Chain chain = three_layers(freeze);
  freeze.check(chain);
  EXPECT_EQ(chain.trained_count(), chain.parameter_count());
}

TEST(Freeze, WhatMeansNothingIsRefused) {
  const auto refused = [](std::vector<std::string> expressions, const char* part) {
    EXPECT_THAT(
        [&] {
          const Freeze freeze("training.freeze", expressions);
          freeze.check(three_layers(freeze));
        },
        ThrowsMessage<UserError>(AllOf(HasSubstr("training.freeze"), HasSubstr(part))));
  };
  refused({"layers\\.0", "embed"}, "'embed' is found in no parameter's name; they read layers.");
  refused({"layers"}, "leaves nothing to train");
  refused({"weight", "bias"}, "leaves nothing to train");
  refused({"(layers"}, "(layers");
}

} // namespace
} // namespace palimpsest
