#include <palimpsest/launcher/cli/output_files.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;
using ::testing::ThrowsMessage;

class OutputFiles : public testing::ProgramFixture {
 protected:
  std::string at(const std::string& name) const {
    return (folder_ / name).string();
  }
};

TEST_F(OutputFiles, OneFileIsRefusedHoweverItIsWritten) {
  std::filesystem::create_directory(folder_ / "sub");
  std::filesystem::create_symlink(folder_ / "sub", folder_ / "link");
  write_file_atomically(folder_ / "there", "x");
  std::filesystem::create_symlink(folder_ / "there", folder_ / "other");
  const std::vector<std::pair<std::string, std::string>> same = {
      {"new", "new"},
      {"new", "sub/../new"},
      {"./new", "new"},
      {"sub/new", "link/new"},
      {"there", "other"}};
  for (const auto& [one, other] : same) {
    EXPECT_THAT(
        [&] {
          require_different_files(
              "train", {{"--html", at(one)}, {"--csv", ""}, {"--json", at(other)}});
        },
        ThrowsMessage<UserError>(
            AllOf(HasSubstr("train: --html and --json are one file, "), HasSubstr(at(other)))));
  }
  require_different_files(
      "train", {{"--html", at("new")}, {"--json", at("sub/new")}, {"--csv", at("there")}});
  require_different_files("train", {{"--html", "/dev/null"}, {"--json", "/dev/null"}});
  require_different_files("train", {{"--html", ""}, {"--json", ""}});
  require_different_files("train", {{"--html", "/none/a"}, {"--json", "/none/b"}});
}

// Every verb that writes files: any two of them, and the config that it reads.
TEST_F(OutputFiles, EveryVerbRefusesTwoOutputsInOneFile) {
  const std::string config = write_tiny_config();
  const std::string before = read_file(config);
  const std::vector<std::pair<std::vector<std::string>, std::vector<std::string>>> verbs = {
      {{"plan", config}, {"--html", "--save-chain"}},
      {{"train", config}, {"--html", "--json", "--dump-gradients"}},
      {{"launch", "-n", "2", "train", config}, {"--html", "--json", "--dump-gradients"}},
      {{"stack", config}, {"--html", "--json", "--csv", "--markdown"}}};
  for (const auto& [verb, options] : verbs) {
    for (const std::string& one : options) {
      for (const std::string& other : options) {
        std::vector<std::string> words = verb;
        if (other == one) {
          words.insert(words.end(), {one, config});
        } else {
          words.insert(words.end(), {one, at("out.txt"), other, at("out.txt")});
        }
        const Outcome outcome = run(words);
        EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
        EXPECT_THAT(outcome.err, HasSubstr(" are one file, "));
        EXPECT_THAT(outcome.err, HasSubstr(one));
        EXPECT_EQ(outcome.out, "");
      }
    }
  }
  EXPECT_EQ(read_file(config), before);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.txt"));
}

} // namespace
} // namespace palimpsest
