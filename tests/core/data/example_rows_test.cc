#include <palimpsest/core/data/example_rows.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/fake_examples.h>
#include <palimpsest/tests/core/data/read_sample.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

const ExampleSettings kRowsOfFour = {.sequence_length = 4, .vocabulary_size = 100};
const ExampleSettings kPacked = {.sequence_length = 6, .packing = true, .vocabulary_size = 100};

TEST(ExampleRows, PadByPositionWhateverTheIds) {
  Notes notes;
  // The end token 2 is also what pads: it stays a target where it ends the text.
  const ExampleRows rows(fake_examples({{5, -6, -2}, {7, -2}, {5, -2, 0, -3}}), kRowsOfFour, notes);
  ASSERT_EQ(rows.size(), 3);
  EXPECT_EQ(read_sample(rows, 0).inputs, (Ids{5, 6, 2, 0}));
  EXPECT_EQ(read_sample(rows, 0).labels, (Ids{6, 2, -100, -100}));
  EXPECT_EQ(read_sample(rows, 1).inputs, (Ids{7, 2, 0, 0}));
  EXPECT_EQ(read_sample(rows, 1).labels, (Ids{2, -100, -100, -100}));
  EXPECT_EQ(read_sample(rows, 2).inputs, (Ids{5, 2, 0, 3}));
  EXPECT_EQ(read_sample(rows, 2).labels, (Ids{2, -100, 3, -100}));
  EXPECT_THAT(rows.documents(0), ElementsAre(3));
  EXPECT_THAT(rows.documents(1), ElementsAre(2));
  EXPECT_FALSE(rows.packed());
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_THROW(read_sample(rows, 3), InternalError);
}

TEST(ExampleRows, CutLongExamplesAndLeaveOutWhatTeachesNothing) {
  Notes notes;
  const ExampleRows rows(
      fake_examples({{1, 2, 3}, {1, 2, 3, 4, -5}, {1, -2, 3, 4, -5, -6}, {-1, 2}, {}, {1, -2}}),
      kRowsOfFour,
      notes);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_EQ(read_sample(rows, 0).inputs, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(read_sample(rows, 0).labels, (Ids{2, -100, -100, -100}));
  EXPECT_EQ(read_sample(rows, 1).labels, (Ids{2, -100, -100, -100}));
  ASSERT_EQ(notes.size(), 2);
  EXPECT_EQ(
      notes[0],
      "fake: 1 of 6 samples are longer than data.sequence_length (4) and are cut, which loses 25 % "
      "of all tokens; the first is fake:3");
  EXPECT_EQ(
      notes[1],
      "fake: 4 of 6 samples have no target in their first 4 tokens and are left out; the first is "
      "fake:1");
}

TEST(ExampleRows, RefuseExamplesWithoutAnyTarget) {
  EXPECT_THAT(
      [] {
        Notes notes;
        ExampleRows(fake_examples({{1, 2}, {-1, 2}}), kRowsOfFour, notes);
      },
      ThrowsMessage<UserError>(HasSubstr("none of 2 samples has a target")));
}

TEST(ExampleRows, PackDocumentsThatDoNotPredictEachOther) {
  Notes notes;
  // 2 + 4 fill a row, 3 + 3 another.
  const ExampleRows rows(
      fake_examples({{11, -12}, {21, -22, -23}, {31, -32, -33, -34}, {41, -42, 43}}),
      kPacked,
      notes);
  ASSERT_EQ(rows.size(), 2);
  EXPECT_TRUE(rows.packed());
  EXPECT_EQ(read_sample(rows, 0).inputs, (Ids{11, 12, 31, 32, 33, 34}));
  EXPECT_EQ(read_sample(rows, 0).labels, (Ids{12, -100, 32, 33, 34, -100}));
  EXPECT_THAT(rows.documents(0), ElementsAre(2, 4));
  EXPECT_EQ(read_sample(rows, 1).inputs, (Ids{21, 22, 23, 41, 42, 43}));
  EXPECT_EQ(read_sample(rows, 1).labels, (Ids{22, 23, -100, 42, -100, -100}));
  EXPECT_THAT(rows.documents(1), ElementsAre(3, 3));
  EXPECT_THAT(notes, ElementsAre("fake: 4 samples packed into 2 rows of 6 tokens, 100.0 % full"));
}

TEST(ExampleRows, HaveTheSameTargetsPackedAndPadded) {
  std::vector<std::vector<int32_t>> examples;
  for (int32_t i = 0; i < 200; ++i) {
    std::vector<int32_t> example = {1};
    for (int32_t t = 0; t < i % 9; ++t) {
      example.push_back(t % 3 == 0 ? -(2 + i % 90) : 2 + i % 90);
    }
    examples.push_back(example);
  }
  const auto targets = [&](bool packing) {
    Notes notes;
    const ExampleRows rows(
        fake_examples(examples),
        {.sequence_length = 16,
         .packing = packing,
         .vocabulary_size = 100,
         .reading = {.threads = 2}},
        notes);
    std::vector<std::pair<int64_t, int64_t>> pairs; // of input and label
    for (int64_t i = 0; i < rows.size(); ++i) {
      const TokenSample sample = read_sample(rows, i);
      for (size_t t = 0; t < 16; ++t) {
        if (sample.labels[t] != -100) {
          pairs.emplace_back(sample.inputs[t], sample.labels[t]);
        }
      }
    }
    std::ranges::sort(pairs);
    return pairs;
  };
  EXPECT_GT(targets(true).size(), 200);
  EXPECT_EQ(targets(true), targets(false));
}

} // namespace
} // namespace palimpsest
