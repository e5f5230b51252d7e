// A process whose address space is limited (ulimit -v): it trains, or it ends with a sentence, never
// by a signal, wherever the space ends.

#include <palimpsest/tests/launcher/program/program_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <string>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using testing::kPatience;
using ::testing::StartsWith;
using testing::Words;

class AddressSpace : public testing::ProgramRanks {
 protected:
  /// The exit code of `command` in at most so many MiB; 128+n for signal n.
  int run_within(int64_t limit, const Words& command) {
    Words words = {"/bin/sh", "-c", R"(ulimit -c 0; ulimit -v $0; exec "$@")"};
    words.push_back(std::to_string(limit * 1024));
    words.insert(words.end(), command.begin(), command.end());
    return wait_for(start(words, {{"OMP_WAIT_POLICY", "passive"}}), kPatience).value_or(-1);
  }

  /// A run of two layers, with some more MiB to hold than a program without work.
  Words train_words(const Words& overrides = {}) {
    std::filesystem::remove_all(output());
    testing::write_letters(folder_ / "text.txt", 4 * 129, 3);
    std::ofstream(folder_ / "run.yaml")
        << "model: {family: llama, hidden_size: 256, num_hidden_layers: 4, num_attention_heads: "
           "4,\n"
           "  num_key_value_heads: 2, intermediate_size: 704, vocab_size: 256,\n"
           "  max_position_embeddings: 200000}\n"
           "data: {files: ["
        << (folder_ / "text.txt").string()
        << "], format: text, sequence_length: 128}\n"
           "training: {steps: 2, global_batch_size: 2, micro_batch_size: 1, threads: 1}\n"
           "optimizer: {learning_rate: 1e-3}\n";
    return train_command((folder_ / "run.yaml").string(), overrides);
  }

  /// The least MiB in which the program says its version.
  int64_t least_to_start() {
    int64_t too_little = 0;
    int64_t enough = 16 * 1024;
    while (enough - too_little > 1) {
      const int64_t middle = (too_little + enough) / 2;
      (run_within(middle, {PALIMPSEST_PROGRAM, "--version"}) == 0 ? enough : too_little) = middle;
    }
    return enough;
  }
};

TEST_F(AddressSpace, EndsWithASentenceWhereverItEndsAndTrainsWellAbove) {
  const int64_t least = least_to_start();
  ASSERT_EQ(run_within(least - 1, {PALIMPSEST_PROGRAM, "--version"}), 1) << err();
  EXPECT_THAT(err(), StartsWith("palimpsest: out of memory: the system does not give the 64 MiB "));
  int trained = 0;
  int ended = 0;
  for (int64_t limit = least - 60; trained < 2; limit += testing::full_tests() ? 2 : 23) {
    SCOPED_TRACE(std::to_string(limit) + " MiB, " + std::to_string(least) + " to start");
    ASSERT_LT(limit, least + 2048) << "it never trains: " << err();
    const int code = run_within(limit, train_words());
    ASSERT_THAT(code, AnyOf(0, 1)) << err();
    if (code == 0) {
      ++trained;
      EXPECT_EQ(metrics().size(), 2U);
    } else {
      ++ended;
      EXPECT_THAT(err(), StartsWith("palimpsest: "));
      EXPECT_EQ(std::ranges::count(err(), '\n'), 1);
      EXPECT_THAT(err(), AnyOf(HasSubstr("out of memory"), HasSubstr("annot ")));
    }
  }
  EXPECT_GT(ended, 3);
}

// With activations of some 200 MiB each in 1.5 GB.
TEST_F(AddressSpace, SaysInWhichPhaseASequenceIsTooLongAndWhatHelps) {
  Words command = train_words(
      {"data.sequence_length=200000", "training.global_batch_size=1", "training.steps=1"});
  testing::write_letters(folder_ / "text.txt", 200001, 3);
  EXPECT_EQ(run_within(1500, command), 1);
  EXPECT_THAT(
      err(),
      AllOf(
          StartsWith("palimpsest: out of memory while measuring the model: "),
          HasSubstr(" MiB wanted, "),
          HasSubstr(" held: workspace "),
          HasSubstr("; a smaller data.sequence_length or a smaller model would help\n")));
}

} // namespace
} // namespace palimpsest
