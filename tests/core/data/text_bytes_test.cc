#include <palimpsest/core/data/text_bytes.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/read_sample.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(TextBytes, JoinsFilesIntoOneStream) {
  const TemporaryFolder folder;
  Notes notes;
  const TextBytes text(
      {folder.write("a.txt", "ab"),
       folder.write("b.txt", "c"),
       folder.write(
           "c.txt",
           "d\xff"
           "efgh!")},
      4,
      256,
      notes);
  ASSERT_EQ(text.size(), 2);
  EXPECT_EQ(read_sample(text, 0).inputs, (Ids{'a', 'b', 'c', 'd'}));
  EXPECT_EQ(read_sample(text, 0).labels, (Ids{'b', 'c', 'd', -100}));
  EXPECT_EQ(read_sample(text, 1).inputs, (Ids{255, 'e', 'f', 'g'}));
  EXPECT_EQ(read_sample(text, 1).labels, (Ids{'e', 'f', 'g', -100}));
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(notes[0], HasSubstr("the last 2 of 10 bytes of text"));
  EXPECT_THROW(read_sample(text, 2), InternalError);
}

TEST(TextBytes, RefusesWhatItCannotTrainOn) {
  const TemporaryFolder folder;
  const auto refused =
      [](const std::filesystem::path& path, int64_t vocabulary, const std::string& part) {
        Notes notes;
        EXPECT_THAT(
            [&] { TextBytes({path}, 4, vocabulary, notes); },
            ThrowsMessage<UserError>(HasSubstr(part)));
      };
  refused(folder.write("a.txt", "abcd"), 255, "the model's vocabulary has 255 ids");
  refused(folder.write("b.txt", "abc"), 256, "4 is longer than the 3 bytes of text");
  refused(folder.write("c.txt", ""), 256, "c.txt is empty");
  refused(folder.path() / "none.txt", 256, "none.txt");
  refused(folder.path(), 256, "directory");
}

} // namespace
} // namespace palimpsest
