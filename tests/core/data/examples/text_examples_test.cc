#include <palimpsest/core/data/examples/text_examples.h>

#include <palimpsest/tests/core/data/examples/toy_encoder.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::EndsWith;
using testing::IsEmpty;

TEST(TextExamples, GiveTheTokensOfWholeFiles) {
  const TemporaryFolder folder;
  std::string text;
  while (text.size() < 20'000) {
    text += "some words ";
  }
  const std::vector<std::string> words = {"<s>", "</s>", " words", " some"};
  const TextExamples examples(
      {folder.write("a.txt", text), folder.write("b.txt", "b")},
      toy_encoder(words, {.bos = "<s>", .eos = "</s>"}));
  ASSERT_GT(examples.size(), 4);
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < examples.size(); ++i) {
    const TokenExample example = examples.read(i);
    ids.insert(ids.end(), example.ids.begin(), example.ids.end());
    EXPECT_EQ(example.targets, std::vector<uint8_t>(example.ids.size(), 1));
    EXPECT_EQ(examples.begins_document(i), i == 0 || i + 1 == examples.size());
  }
  EXPECT_EQ(ids, toy_encode("<s>" + text + "</s><s>b</s>", words));
  EXPECT_THAT(examples.location(1), EndsWith("a.txt, piece 2 of 5"));
  EXPECT_THAT(examples.notes(), IsEmpty());
}

TEST(TextExamples, TellOfCutsThatTheTokenizerDoesNotAllow) {
  const TemporaryFolder folder;
  const TextExamples examples(
      {folder.write("a.txt", "b"), folder.write("b.txt", std::string(5 << 19, 'x'))}, // 2.5 MiB
      toy_encoder({}));
  EXPECT_EQ(examples.forced_cuts(), 2);
  ASSERT_EQ(examples.notes().size(), 1);
  EXPECT_THAT(
      examples.notes()[0],
      EndsWith("a.txt: cut at 2 places where the tokenizer would not be, as "
               "it allows no cut for 1 MiB"));
}

} // namespace
} // namespace palimpsest
