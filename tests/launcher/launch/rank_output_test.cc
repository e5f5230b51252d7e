#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/launch_plan.h>
#include <palimpsest/launcher/launch/rank_output.h>
#include <palimpsest/tests/launcher/launch/launch_testing.h>

#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using testing::text_of;

TEST(LineFolder, KeepsTheLastStateOfARedrawnLine) {
  LineFolder lines;
  EXPECT_EQ(lines.add("one\ntw"), "one\n");
  EXPECT_EQ(lines.rest(), "tw");
  EXPECT_EQ(lines.add("o\n"), "two\n");
  EXPECT_EQ(lines.add("\r10%\r20"), "");
  EXPECT_EQ(lines.add("%\r"), "");
  EXPECT_EQ(lines.rest(), "20%"); // nothing has replaced it yet
  EXPECT_EQ(lines.add("100%\n\nend\r\n"), "100%\n\nend\n");
  EXPECT_EQ(lines.rest(), "");
}

class Output : public testing::ProcessFixture {
 protected:
  std::filesystem::path logs() const {
    return folder_ / "logs";
  }
  /// Runs `action` as rank `rank`, with the output that `output` gives it.
  template <typename Action>
  void as_rank(const RankOutput& output, int rank, const Action& action) {
    Environment environment;
    output.tell(environment);
    const pid_t child = fork();
    if (child == 0) {
      redirect_output(environment, rank);
      action();
      _exit(0);
    }
    waitpid(child, nullptr, 0);
  }
  static void say(int fd, const std::string& text) {
    EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }
};

TEST_F(Output, EachRankHasItsLogAndRank0TheScreen) {
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  {
    RankOutput output(logs(), 2);
    as_rank(output, 0, [] {
      say(1, "first\n");
      say(2, "warning\n");
      say(1, "no newline");
    });
    as_rank(output, 1, [] { say(1, "second\n"); });
    output.drain();
    EXPECT_EQ(output.tail(1), "second\n");
    EXPECT_THAT(output.tail(0), HasSubstr("no newline\n"));
    EXPECT_TRUE(output.is_on_screen("first\nwarning\n"));
    EXPECT_FALSE(output.is_on_screen("first\nsecond\n"));
  }
  EXPECT_EQ(::testing::internal::GetCapturedStdout(), "first\nno newline");
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "warning\n");
  EXPECT_EQ(text_of(log_of(logs(), 0)), "first\nno newline\nwarning\n");
  EXPECT_EQ(text_of(log_of(logs(), 1)), "second\n");
}

TEST_F(Output, LogsGoOnAndTailsAreOfThisLaunch) {
  std::filesystem::create_directories(logs());
  std::ofstream(log_of(logs(), 1)) << "yesterday\n";
  const RankOutput output(logs(), 2);
  EXPECT_EQ(output.tail(1), "");
  as_rank(output, 1, [] { say(2, "today\n"); });
  EXPECT_EQ(output.tail(1), "today\n");
  EXPECT_EQ(text_of(log_of(logs(), 1)), "yesterday\ntoday\n");
}

TEST_F(Output, TailsAreTheLastTenLines) {
  const RankOutput output(logs(), 2);
  as_rank(output, 1, [] {
    for (int i = 1; i <= 1000; ++i) {
      say(1, "line " + std::to_string(i) + "\n");
    }
  });
  EXPECT_TRUE(output.tail(1).starts_with("line 991\n"));
  EXPECT_TRUE(output.tail(1).ends_with("\nline 1000\n"));
}

TEST_F(Output, NeverBlocksOnAScreenThatTakesNothing) {
  int full[2];
  ASSERT_EQ(pipe(full), 0);
  fcntl(full[1], F_SETFL, O_NONBLOCK);
  while (write(full[1], "x", 1) == 1) {
  }
  fcntl(full[1], F_SETFL, 0);
  const int screen = dup(1);
  dup2(full[1], 1);
  {
    RankOutput output(logs(), 1);
    as_rank(output, 0, [] { say(1, "text\n"); });
    for (int i = 0; i < 3; ++i) {
      std::vector<pollfd> polled = output.polled();
      poll(polled.data(), polled.size(), 10);
      output.serve(polled);
    }
    output.drain(); // gives the screen up
    EXPECT_EQ(output.tail(0), "text\n");
  }
  dup2(screen, 1);
  close(screen);
  close(full[0]);
  close(full[1]);
}

TEST_F(Output, AFolderThatTakesNoFilesIsNamed) {
  std::ofstream(folder_ / "file") << "x";
  EXPECT_THROW(RankOutput(folder_ / "file" / "logs", 1), Error);
}

TEST(RedirectOutput, DoesNothingWithoutALauncher) {
  redirect_output({}, 0);
}

} // namespace
} // namespace palimpsest
