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

/// Before a line's first character.
std::optional<size_t> line_start(std::string_view text) {
  const size_t end = text.rfind('\n', text.size() - 2);
  return end == text.npos ? std::nullopt : std::optional(end + 1);
}

TEST(TextChunks, EndWhereTheyMay) {
  const TemporaryFolder folder;
  std::string text;
  for (int i = 0; i < 3000; ++i) {
    text += "line " + std::to_string(i) + " \xe2\x82\xac\n";
  }
  const TextChunks chunks(folder.write("a.txt", "\xef\xbb\xbf" + text), line_start);
  EXPECT_EQ(joined(chunks), text);
  ASSERT_GT(chunks.size(), 5);
  for (int64_t i = 0; i + 1 < chunks.size(); ++i) {
    EXPECT_LE(chunks.chunk(i).size(), TextChunks::kChunk);
    EXPECT_GT(chunks.chunk(i).size(), TextChunks::kChunk - 40);
    EXPECT_EQ(chunks.chunk(i + 1).front(), 'l');
  }
  EXPECT_EQ(chunks.forced_cuts(), 0);
}

TEST(TextChunks, GrowToTheNextCutAndEndWithinWordsOnlyBeyondAMebibyte) {
  const TemporaryFolder folder;
  const std::string lines = std::string(20'000, 'x') + "\n" + std::string(100'000, 'y') + "\n" +
      std::string(100'000, 'z');
  const TextChunks grown(folder.write("a.txt", lines), line_start);
  EXPECT_EQ(joined(grown), lines);
  ASSERT_EQ(grown.size(), 3);
  EXPECT_EQ(grown.chunk(1).size(), 100'001);
  EXPECT_EQ(grown.forced_cuts(), 0);

  std::string word;
  while (word.size() < 2'500'000) {
    word += "\xe2\x82\xac";
  }
  const TextChunks cut(folder.write("b.txt", word), line_start);
  EXPECT_EQ(joined(cut), word);
  ASSERT_EQ(cut.size(), 3);
  EXPECT_EQ(cut.chunk(0).size() % 3, 0);
  EXPECT_EQ(cut.forced_cuts(), 2);
}

TEST(TextChunks, RefuseWhatIsNoTextWithItsLine) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::string& text, const std::string& part) {
    const auto path = folder.write("a.txt", text);
    EXPECT_THAT([&] { TextChunks(path, line_start); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused("one\ntwo \xff\n", "a.txt:2: byte 9 of the file is no UTF-8");
  refused(std::string(5000, 'x') + "\n" + std::string(5000, 'x') + "\xc3", ":2: byte 10002");
  refused(std::string((4 << 20) - 1, 'x') + "\n\x80", ":2: byte 4194305");
  refused("PAR1", "Parquet");
  refused("", "empty");
  refused("\xef\xbb\xbf", "empty");
  const std::string euros =
      std::string((4 << 20) - 1, 'x') + "\xe2\x82\xac"; // over a part's border
  EXPECT_EQ(joined(TextChunks(folder.write("b.txt", euros), line_start)), euros);
}

} // namespace
} // namespace palimpsest
