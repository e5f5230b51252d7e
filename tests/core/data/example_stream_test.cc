#include <palimpsest/core/data/example_stream.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/fake_examples.h>
#include <palimpsest/tests/core/data/read_sample.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

std::unique_ptr<TokenExamples> four_pieces() {
  // The second goes on with the first, the third is empty.
  return fake_examples(
      {{1, 2, 3}, {4, 5}, {}, {6, 7, 8, 9}, {10}}, {true, false, true, true, true});
}

TEST(ExampleStream, CutsTheStreamIntoRows) {
  Notes notes;
  const ExampleStream stream(four_pieces(), {.sequence_length = 4, .vocabulary_size = 11}, notes);
  ASSERT_EQ(stream.size(), 2);
  EXPECT_EQ(read_sample(stream, 0).inputs, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(read_sample(stream, 0).labels, (Ids{2, 3, 4, -100}));
  EXPECT_EQ(read_sample(stream, 1).inputs, (Ids{5, 6, 7, 8}));
  EXPECT_EQ(read_sample(stream, 1).labels, (Ids{6, 7, 8, -100}));
  EXPECT_THAT(stream.documents(1), ElementsAre(4));
  EXPECT_FALSE(stream.packed());
  EXPECT_THAT(
      notes, ElementsAre("fake: the last 2 of 10 tokens fill no row of 4 and are left out"));
  EXPECT_THROW(read_sample(stream, 2), InternalError);
}

TEST(ExampleStream, KeepsDocumentsApartWhenPacked) {
  Notes notes;
  const ExampleStream stream(
      four_pieces(), {.sequence_length = 5, .packing = true, .vocabulary_size = 11}, notes);
  ASSERT_EQ(stream.size(), 2);
  EXPECT_THAT(stream.documents(0), ElementsAre(5));
  EXPECT_EQ(read_sample(stream, 1).inputs, (Ids{6, 7, 8, 9, 10}));
  EXPECT_EQ(read_sample(stream, 1).labels, (Ids{7, 8, 9, -100, -100}));
  EXPECT_THAT(stream.documents(1), ElementsAre(4, 1));
  const ExampleStream shorter(
      four_pieces(), {.sequence_length = 3, .packing = true, .vocabulary_size = 11}, notes);
  EXPECT_THAT(shorter.documents(1), ElementsAre(2, 1)); // 4 5 | 6
  EXPECT_EQ(read_sample(shorter, 1).labels, (Ids{5, -100, -100}));
  EXPECT_THAT(shorter.documents(2), ElementsAre(3));
}

TEST(ExampleStream, RefusesLessThanARow) {
  EXPECT_THAT(
      [] {
        Notes notes;
        ExampleStream(four_pieces(), {.sequence_length = 11, .vocabulary_size = 11}, notes);
      },
      ThrowsMessage<UserError>(
          HasSubstr("data.sequence_length: 11 is longer than the 10 tokens of fake")));
}

} // namespace
} // namespace palimpsest
