#include <palimpsest/core/optim/register_optimizers.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(MakeOptimizer, KnowsItsNames) {
  EXPECT_EQ(make_optimizer({.name = "adamw"})->moment_count(), 2);
  EXPECT_EQ(make_optimizer({.name = "sgd"})->moment_count(), 0);
  EXPECT_EQ(make_optimizer({.name = "sgd", .momentum = 0.9})->moment_count(), 1);
}

TEST(MakeOptimizer, ListsThemWhereOneIsUnknown) {
  EXPECT_THAT(
      [] { make_optimizer({.name = "adam"}); },
      testing::ThrowsMessage<UserError>(
          "optimizer.name: \"adam\" is unknown; known are adamw, sgd"));
}

} // namespace
} // namespace palimpsest
