#include <palimpsest/core/base/bytes.h>

#include <gtest/gtest.h>

#include <string>
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
      {"0.5MiB", 524288},
      {"13.6GiB", 14602888806}, // and two fifths
      {"1.1GB", 1100000000},
      {"0.7MB", 700000}};
  for (const auto& [text, bytes] : cases) {
    EXPECT_EQ(parse_bytes(text), bytes) << text;
  }
}

TEST(ParseBytes, ReadsWhatMessagesAllow) {
  int64_t thousands = 1;
  int64_t binary = 1;
  for (const std::string prefix : {"k", "M", "G", "T"}) {
    const std::string decimal_unit = prefix + "B";
    const std::string binary_unit = (prefix == "k" ? "K" : prefix) + "iB";
    EXPECT_EQ(parse_bytes("1" + decimal_unit), thousands *= 1000);
    EXPECT_EQ(parse_bytes("1" + binary_unit), binary *= 1024);
    EXPECT_NE(kSizesAllowed.find(decimal_unit), std::string_view::npos) << decimal_unit;
    EXPECT_NE(kSizesAllowed.find(binary_unit), std::string_view::npos) << binary_unit;
  }
  EXPECT_EQ(parse_bytes("500 MB"), 500'000'000);
}

TEST(ParseBytes, RefusesWhatIsNoSize) {
  for (const std::string_view text :
       {"",
        "GiB",
        "-1",
        "-0",
        "1.5",
        "1.5B",
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
