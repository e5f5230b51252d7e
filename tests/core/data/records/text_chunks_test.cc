#include <palimpsest/core/data/records/text_chunks.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

std::string joined(const TextChunks& text) {
  std::string all;
  for (int64_t i = 0; i < text.size(); ++i) {
    EXPECT_FALSE(text.chunk(i).empty());
    all += text.chunk(i);
    text.release(i);
  }
  return all;
}

TEST(TextChunks, EndWhereALineBeginsWithSomethingVisible) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "line " + std::to_string(i) + (i % 3 == 0 ? "\r\n\n" : "\n") + (i % 5 == 0 ? "  " : "");
  }
  const TextChunks chunks(folder.write("a.txt", "\xef\xbb\xbf" + text));
  EXPECT_EQ(joined(chunks), text);
  ASSERT_GT(chunks.size(), 5);
  for (int64_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_GE(std::ssize(chunks.chunk(i)), TextChunks::kChunk);
    EXPECT_LT(std::ssize(chunks.chunk(i)), TextChunks::kChunk + 50);
    EXPECT_EQ(chunks.chunk(i).back(), '\n');
    EXPECT_EQ(chunks.chunk(i + 1).front(), 'l');
  }
}

TEST(TextChunks, CutLongLinesBetweenWordsAndLongWordsBetweenCharacters) {
  const TemporaryFolder folder;
  std::string words;
  while (words.size() < 300'000) {
    words += "some words ";
  }
  const TextChunks by_words(folder.write("a.txt", words));
  EXPECT_EQ(joined(by_words), words);
  ASSERT_EQ(by_words.size(), 5);
  EXPECT_EQ(by_words.chunk(1).front(), ' ');
  EXPECT_NE(by_words.chunk(0).back(), ' ');

  std::string word;
  while (word.size() < 300'000) {
    word += "\xe2\x82\xac";
  }
  const TextChunks by_characters(folder.write("b.txt", word));
  EXPECT_EQ(joined(by_characters), word);
  ASSERT_EQ(by_characters.size(), 3);
  EXPECT_EQ(by_characters.chunk(1).substr(0, 3), "\xe2\x82\xac");
}

TEST(TextChunks, RefuseWhatIsNoTextWithItsLine) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& text, const std::string& part) {
    const auto path = folder.write("a.txt", text);
    EXPECT_THAT([&] { TextChunks chunks(path); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused("one\ntwo \xff\n", "a.txt:2: byte 9 of the file is no UTF-8");
  refused(std::string(5000, 'x') + "\n" + std::string(5000, 'x') + "\xc3", ":2: byte 10002");
  refused("PAR1", "Parquet");
  refused("", "empty");
}

} // namespace
} // namespace palimpsest
