#include <palimpsest/core/contracts/chain.h>

#include <gtest/gtest.h>

#include <memory>

namespace palimpsest {
namespace {

// An embedding of 67 x 24 that the head uses too, and a frozen layer: a unit counts once, however
// many blocks read it and whether it is trained or not.
TEST(Chain, CountsEachUnitsParametersOnce) {
  Chain chain;
  const auto add = [&](const char* name, std::vector<int64_t> shape, bool trainable) {
    chain.units.push_back(std::make_unique<ParamUnit>(
        name, std::vector<Parameter>{{.name = name, .shape = shape}}, at::kFloat, trainable));
  };
  EXPECT_EQ(chain.parameter_count(), 0);
  add("embedding", {67, 24}, true);
  add("layer", {24, 24}, false);
  add("scale", {}, true);
  for (const int unit : {0, 1, 2}) {
    chain.blocks.push_back({.block = nullptr, .name = "block", .units = {unit}});
  }
  chain.terminal_units = {0};
  EXPECT_EQ(chain.parameter_count(), 67 * 24 + 24 * 24 + 1);
  EXPECT_EQ(chain.trained_count(), 67 * 24 + 1);
  EXPECT_EQ(chain.terminal_index(), 3);
}

} // namespace
} // namespace palimpsest
