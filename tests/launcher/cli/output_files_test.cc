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

// A place that takes no file is told before the work, a disk that fills up when it does.
TEST_F(OutputFiles, EveryVerbNamesTheFileThatItCannotWrite) {
  const std::string config =
      write_tiny_config("global_batch_size: 4, micro_batch_size: 2, threads: 1, steps: 1");
  const std::string corpus = at("corpus.txt");
  const std::string words = std::string(PALIMPSEST_TEST_DATA) + "/tokenizers/gpt2-512";
  ASSERT_EQ(run({"train", config, "--quiet"}).exit_code, 0);
  const std::string model = at("out/model");
  const std::string restart = "training.restart=true";
  struct Case {
    std::vector<std::string> verb;
    std::vector<std::string> options;
    bool runs_itself = false; // as a process, which a test is none of
  };
  const std::vector<Case> cases = {
      {{"plan", config}, {"--html", "--save-chain"}},
      {{"train", config, restart}, {"--html", "--json", "--dump-gradients"}},
      {{"stack", config}, {"--html", "--json", "--csv", "--markdown"}, true},
      {{"eval", model, "--data", corpus, "data.sequence_length=32"}, {"--json"}},
      {{"tokenize", corpus, "--tokenizer", words}, {"--output"}},
      {{"generate", model, "--prompt", "a", "--max-new-tokens", "2"}, {"--output"}}};
  for (const Case& one : cases) {
    for (const std::string& option : one.options) {
      const auto outcome = [&](const std::string& file) {
        std::vector<std::string> all = one.verb;
        all.insert(all.end(), {option, file});
        return run(all);
      };
      SCOPED_TRACE(one.verb[0] + " " + option);
      const Outcome nowhere = outcome("/proc/none/x");
      EXPECT_EQ(nowhere.exit_code, 1);
      EXPECT_THAT(nowhere.err, HasSubstr("cannot write /proc/none/x: No such file or directory"));
      if (!one.runs_itself) {
        const Outcome full = outcome("/dev/full");
        EXPECT_EQ(full.exit_code, 1);
        EXPECT_THAT(full.err, HasSubstr("cannot write /dev/full: No space left on device"));
      }
    }
  }
  EXPECT_THAT(
      run({"tokenize", at("none.txt"), "--train", "--vocab-size", "300", "-o", "/proc/none/x"}).err,
      HasSubstr("cannot create folder /proc/none: ")); // before any text is read
}

} // namespace
} // namespace palimpsest
