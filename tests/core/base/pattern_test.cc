#include <palimpsest/core/base/pattern.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>

#include <string>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kName = "model.layers.11.self_attn.q_proj.weight";

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

std::string refusal(const std::string& expression) {
  try {
    const Pattern pattern("some.key", expression);
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Pattern, SearchesOrMatchesTheWhole) {
  const Pattern part("key", "layers\\.(1|11)\\.");
  EXPECT_TRUE(part.found_in(kName));
  EXPECT_FALSE(part.matches(kName));
  const Pattern whole("key", "model\\.layers\\.[0-9]{2}\\..*(?=ht)ht");
  EXPECT_TRUE(whole.matches(kName));
  EXPECT_FALSE(whole.matches("model.layers.1.self_attn.q_proj.weight"));
}

TEST(Pattern, TakesNoExponentialTime) {
  // Trying the alternatives in turn would need more steps than the test has seconds.
  const std::string name = repeat("a", 60) + "c";
  EXPECT_FALSE(Pattern("key", "(a*)*b").found_in(name));
  EXPECT_FALSE(Pattern("key", repeat("(.*)*", 20) + "b").matches(name));
  EXPECT_FALSE(Pattern("key", "(a|aa)+$").matches(name));
}

TEST(Pattern, RefusesWhatCouldOverflowTheStack) {
  const std::string deepest = repeat("(", 950) + repeat(")", 950);
  EXPECT_FALSE(Pattern("key", deepest).matches("a"));
  EXPECT_TRUE(Pattern("key", "(a?){200}").matches("a"));
  for (const std::string& large :
       {repeat("(", 1001) + repeat(")", 1001),
        repeat(".*", 1001),
        std::string("(a?){30000}"),
        std::string("((a?){99}){99}"),
        std::string("a{1,99999999999999999999999}"),
        std::string("a{99999999}")}) {
    EXPECT_THAT(refusal(large), AllOf(HasSubstr("some.key"), HasSubstr("too large")));
  }
}

TEST(Pattern, RefusesWhatIsInvalid) {
  for (const std::string invalid : {"(", "[a", "a{2", "*", "\\", "(a)\\1"}) {
    EXPECT_THAT(
        refusal(invalid),
        AllOf(HasSubstr("some.key"), HasSubstr("valid regular expression"), HasSubstr(invalid)));
  }
}

} // namespace
} // namespace palimpsest
