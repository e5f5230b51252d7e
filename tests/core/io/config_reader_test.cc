#include <palimpsest/core/io/config_reader.h>

#include <palimpsest/tests/core/io/testing.h>

#include <limits>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;

TEST(ConfigReader, ReadsWithinLimits) {
  const nlohmann::json json = {{"i", 5}, {"d", 0.5}, {"b", true}, {"s", "x"}, {"none", nullptr}};
  const ConfigReader keys(json, "f.json");
  EXPECT_EQ(keys.integer("i", 5, 5), 5);
  EXPECT_EQ(keys.number("i", 0, 10), 5.0);
  EXPECT_EQ(keys.number("d", 0.5, 0.5), 0.5);
  EXPECT_EQ(keys.boolean("b"), true);
  EXPECT_EQ(keys.string("s"), "x");
  EXPECT_FALSE(keys.has("none"));
  EXPECT_TRUE(keys.is_null("none"));
  EXPECT_FALSE(keys.is_null("absent") || keys.is_null("s"));
  EXPECT_FALSE(keys.optional_integer("none", 0, 1));
  EXPECT_FALSE(keys.number("absent", 0, 1));
}

TEST(ConfigReader, RefusesNamingFilePrefixAndKey) {
  const nlohmann::json json = {
      {"i", 5}, {"d", 5.0}, {"s", "x"}, {"huge", std::numeric_limits<uint64_t>::max()}};
  const ConfigReader keys(json, "f.json", "part.");
  const auto message = [](auto&& action) { return message_of<UserError>(action); };
  EXPECT_EQ(
      message([&] { keys.integer("i", 6, 9); }),
      "f.json: part.i is 5, but it must be an integer from 6 to 9");
  EXPECT_EQ(
      message([&] { keys.integer("gone", 6, 9); }),
      "f.json: part.gone is missing, but it is required: an integer from 6 to 9");
  EXPECT_THAT(message([&] { keys.integer("d", 0, 9); }), HasSubstr("part.d is 5.0"));
  EXPECT_THAT(message([&] { keys.integer("huge", -1, 9); }), HasSubstr("part.huge"));
  EXPECT_THAT(message([&] { keys.number("s", 0, 1); }), HasSubstr("part.s is \"x\""));
  EXPECT_THAT(message([&] { keys.boolean("i"); }), HasSubstr("true or false"));
  EXPECT_THAT(message([&] { keys.string("i"); }), HasSubstr("a string"));
  const nlohmann::json list = nlohmann::json::array();
  EXPECT_EQ(
      message([&] { ConfigReader(list, "f.json", "part."); }),
      "f.json: part must be an object, not a list");
}

} // namespace
} // namespace palimpsest
