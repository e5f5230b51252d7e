#include <palimpsest/core/io/json.h>

#include <palimpsest/tests/core/io/testing.h>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string refusal(std::string_view text) {
  return message_of<UserError>([&] { parse_json(text, "x.json"); });
}

TEST(ParseJson, Reads) {
  EXPECT_EQ(parse_json(R"({"a":[{"a":1},{"a":2}]})", "x.json")["a"][1]["a"], 2);
  EXPECT_NO_THROW(parse_json(std::string(64, '[') + std::string(64, ']'), "x.json"));
}

TEST(ParseJson, RefusesDuplicateKeysAtAnyDepth) {
  EXPECT_THAT(refusal(R"({"a":1,"b":2,"a":1})"), AllOf(HasSubstr("x.json"), HasSubstr("\"a\"")));
  EXPECT_THAT(refusal(R"([{"x":{"b":1,"b":1}}])"), HasSubstr("\"b\" occurs twice"));
}

TEST(ParseJson, RefusesDeepNestingWithoutUsingTheStack) {
  EXPECT_THAT(refusal(std::string(1'000'000, '[')), HasSubstr("nested deeper"));
  EXPECT_THAT(refusal(std::string(66, '[') + std::string(66, ']')), HasSubstr("nested deeper"));
}

TEST(ParseJson, NamesTheByte) {
  EXPECT_THAT(refusal("{\"a\":}"), HasSubstr("at byte 6"));
  EXPECT_THAT(refusal(""), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("{\"a\":1e999}"), HasSubstr("out of range"));
}

TEST(Quote, KeepsForeignTextHarmless) {
  EXPECT_EQ(quote("a\n\"b"), R"("a\n\"b")");
  EXPECT_EQ(quote("\x1b[2J"), "\"\\u001b[2J\"");
  EXPECT_EQ(quote(std::string(200, 'x')), "\"" + std::string(100, 'x') + "\"...");
  EXPECT_THAT(quote("\xff"), HasSubstr("\""));
}

} // namespace
} // namespace palimpsest
