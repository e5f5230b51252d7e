#include <palimpsest/launcher/cli/text_bar.h>

#include <gtest/gtest.h>

#include <sstream>

namespace palimpsest {
namespace {

TEST(TextBar, SaysTwiceAMinuteWhatIsLeft) {
  double now = 100;
  std::ostringstream out;
  TextBar bar(out, [&] { return now; });
  bar.show(0.1, "a.jsonl");
  now += 29;
  bar.show(0.2, "a.jsonl");
  EXPECT_EQ(out.str(), "");
  now += 1;
  bar.show(0.25, "a.jsonl"); // a quarter in 30 s
  EXPECT_EQ(out.str(), "25 %  a.jsonl  90 s left\n");
  now += 30;
  bar.show(1, "a.jsonl");
  now += 10;
  bar.show(0, "b.jsonl"); // what is left is counted anew
  now += 20;
  out.str("");
  bar.show(0.5, "b.jsonl");
  EXPECT_EQ(out.str(), "50 %  b.jsonl  20 s left\n");
  bar.end();
  EXPECT_EQ(out.str(), "50 %  b.jsonl  20 s left\n");
  EXPECT_EQ(bar.seconds(), 90);
}

} // namespace
} // namespace palimpsest
