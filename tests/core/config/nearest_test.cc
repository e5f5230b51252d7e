#include <palimpsest/core/config/nearest.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(Nearest, CountsEdits) {
  EXPECT_EQ(edit_distance("", ""), 0);
  EXPECT_EQ(edit_distance("", "abc"), 3);
  EXPECT_EQ(edit_distance("kitten", "sitting"), 3); // the textbook example
  EXPECT_EQ(edit_distance("ab", "ba"), 1); // a swap is one slip
  EXPECT_EQ(edit_distance("ca", "abc"), 3); // restricted: no edits inside a swap
}

TEST(Nearest, SuggestsOnlyWhatIsNear) {
  EXPECT_EQ(nearest_name("learning_rat", {"betas", "learning_rate"}), "learning_rate");
  EXPECT_EQ(nearest_name("xyzzy", {"betas", "learning_rate"}), "");
  EXPECT_EQ(nearest_name("aa", {"ab", "ac"}), "ab");
  EXPECT_EQ(nearest_name(std::string(100000, 'a'), {"a"}), "");
  EXPECT_EQ(did_you_mean("bets", {"betas"}), " (did you mean betas?)");
  EXPECT_EQ(did_you_mean("qqqqqqqqq", {"betas"}), "");
}

} // namespace
} // namespace palimpsest
