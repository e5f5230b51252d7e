#include <palimpsest/core/base/bytes.h>

#include <gtest/gtest.h>

#include <string_view>
#include <tuple>

namespace palimpsest {
namespace {

TEST(ParseBytes, AcceptsUnitsAndPlainNumbers) {
  const std::tuple<std::string_view, int64_t> cases[] = {
      {"0", 0},
      {"4096", 4096},
      {"7B", 7},
      {"64KiB", 65536},
      {"1.5GiB", 1610612736},
      {"8 GiB", 8589934592},
      {"2GB", 2000000000},
      {"1kB", 1000},
      {"0.5MiB", 524288}};
  for (const auto& [text, bytes] : cases) {
    EXPECT_EQ(parse_bytes(text), bytes) << text;
  }
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const std::string_view text :
       {"",
        "GiB",
        "-1",
        "-0",
        "1.5",
        "8 gib",
        "8  GiB",
        "nan",
        "inf",
        "1e400",
        "9223372036854775808",
        "9000000TiB",
        "1x"}) {
    EXPECT_EQ(parse_bytes(text), std::nullopt) << text;
  }
}

TEST(FormatBytes, ThreeSignificantDigits) {
  EXPECT_EQ(format_bytes(812), "812 B");
  EXPECT_EQ(format_bytes(3'586'129), "3.42 MiB");
  EXPECT_EQ(format_bytes(1'073'741'824), "1.00 GiB");
  EXPECT_EQ(format_bytes(123'456'789), "118 MiB");
}

} // namespace
} // namespace palimpsest
