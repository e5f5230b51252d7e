#include <palimpsest/core/data/token_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/read_sample.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

template <typename Id>
std::vector<Id> count_up(size_t tokens) {
  std::vector<Id> ids(tokens);
  std::iota(ids.begin(), ids.end(), Id{1});
  return ids;
}

template <typename Id>
class TokenFileOf : public testing::Test {};
using IdTypes = testing::Types<uint16_t, uint32_t>;
TYPED_TEST_SUITE(TokenFileOf, IdTypes);

TYPED_TEST(TokenFileOf, CutsRowsAndShiftsInsideThem) {
  const TemporaryFolder folder;
  const auto ids = count_up<TypeParam>(12);
  Notes notes;
  const int64_t vocabulary = sizeof(TypeParam) == 2 ? 65536 : 65537;
  const TokenFile file(folder.write<TypeParam>("a.bin", ids), 4, vocabulary, notes);
  EXPECT_EQ(file.id_bytes(), sizeof(TypeParam));
  EXPECT_EQ(file.kind(), SampleKind::kTokens);
  ASSERT_EQ(file.size(), 3);
  EXPECT_EQ(read_sample(file, 0).inputs, (Ids{1, 2, 3, 4}));
  EXPECT_EQ(read_sample(file, 0).labels, (Ids{2, 3, 4, -100}));
  EXPECT_EQ(read_sample(file, 2).inputs, (Ids{9, 10, 11, 12}));
  EXPECT_EQ(read_sample(file, 2).labels, (Ids{10, 11, 12, -100}));
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_THROW(read_sample(file, 3), InternalError);
}

TEST(TokenFile, TellsOfARowThatIsLeftOut) {
  const TemporaryFolder folder;
  Notes notes;
  const TokenFile file(folder.write<uint16_t>("a.bin", count_up<uint16_t>(11)), 4, 100, notes);
  EXPECT_EQ(file.size(), 2);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(notes[0], HasSubstr("a.bin: the last 3 of 11 tokens fill no row of 4"));
}

TEST(TokenFile, NoticesWideIdsOfASmallVocabulary) {
  const TemporaryFolder folder;
  Notes notes;
  const TokenFile wide(folder.write<uint32_t>("wide.bin", count_up<uint32_t>(8)), 4, 100, notes);
  EXPECT_EQ(wide.id_bytes(), 4);
  EXPECT_EQ(read_sample(wide, 1).inputs, (Ids{5, 6, 7, 8}));
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(notes[0], HasSubstr("wide.bin is read as uint32"));
  const std::vector<uint16_t> zeros(8);
  const TokenFile narrow(folder.write<uint16_t>("narrow.bin", zeros), 4, 100, notes);
  EXPECT_EQ(narrow.size(), 2);
}

TEST(TokenFile, RefusesFilesItCannotTrainOn) {
  const TemporaryFolder folder;
  const auto refused =
      [](const std::filesystem::path& path, int64_t vocabulary, const std::string& part) {
        Notes notes;
        EXPECT_THAT(
            [&] { TokenFile(path, 4, vocabulary, notes); },
            ThrowsMessage<UserError>(
                testing::AllOf(HasSubstr(path.filename().string()), HasSubstr(part))));
      };
  refused(folder.path() / "none.bin", 100, "none.bin");
  refused(folder.path(), 100, "directory");
  refused("/dev/null", 100, "regular file");
  refused(folder.write("empty.bin", ""), 100, "empty");
  refused(folder.write("odd.bin", "12345"), 65536, "5 bytes");
  refused(folder.write("six.bin", "123456"), 65537, "6 bytes");
  refused(
      folder.write<uint16_t>("short.bin", count_up<uint16_t>(3)),
      100,
      "4 is longer than the 3 tokens");
  refused(
      folder.write<uint16_t>("id.bin", count_up<uint16_t>(9)),
      9,
      "token 9 at position 8 (read as uint16)");
  refused(
      folder.write<uint32_t>("big.bin", std::vector<uint32_t>{1, 2, 3, 70000}),
      70000,
      "token 70000 at position 3");
}

TEST(TokenFile, FindsABadIdBehindTheFirstPartOfAScan) {
  const TemporaryFolder folder;
  std::vector<uint16_t> ids(5'000'000, 7);
  ids[4'999'600] = 300;
  const auto path = folder.write<uint16_t>("long.bin", ids);
  Notes notes;
  EXPECT_THAT(
      [&] { TokenFile(path, 512, 300, notes); },
      ThrowsMessage<UserError>(HasSubstr("token 300 at position 4999600")));
  const TokenFile file(path, 512, 301, notes);
  EXPECT_EQ(read_sample(file, 9764).inputs[4'999'600 - 9764 * 512], 300);
}

TEST(TokenFile, NeedsATargetInEveryRow) {
  const TemporaryFolder folder;
  Notes notes;
  const auto path = folder.write<uint16_t>("a.bin", count_up<uint16_t>(4));
  EXPECT_THROW(TokenFile(path, 1, 100, notes), UserError);
  EXPECT_THROW(TokenFile(path, 0, 100, notes), UserError);
}

} // namespace
} // namespace palimpsest
