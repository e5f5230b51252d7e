#include <palimpsest/core/data/records/file_kinds.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

TEST(FileKinds, RefusesWithTheConversion) {
  const TemporaryFolder folder;
  const auto refused =
      [&](const std::string& name, const std::string& bytes, const std::string& conversion) {
        const MappedFile file(folder.write(name, bytes));
        EXPECT_THAT(
            [&] { refuse_other_formats(file); },
            ThrowsMessage<UserError>(AllOf(HasSubstr(name), HasSubstr(conversion))));
      };
  const std::string stem = (folder.path() / "train").string();
  refused(
      "train.parquet",
      "PAR1xxxx",
      "python3 -c \"import pandas; pandas.read_parquet('" + stem + ".parquet').to_json('" + stem +
          ".jsonl', orient='records', lines=True)\"");
  refused("train.arrow", "ARROW1", "pandas.read_feather('" + stem + ".arrow')");
  refused("train.jsonl.gz", "\x1f\x8b\x08", "gunzip -k " + stem + ".jsonl.gz");
  refused("train.zst", "\x28\xb5\x2f\xfd", "unzstd ");
  refused(
      "train.xz",
      "\xfd"
      "7zXZ",
      "unxz -k ");
  refused("train.json", std::string("\xff\xfe{\0", 4), "iconv -f UTF-16 -t UTF-8");
  refuse_other_formats(MappedFile(folder.write("PAR.txt", "PAR is not PAR1")));
}

TEST(FileKinds, KnowsAByteOrderMark) {
  const TemporaryFolder folder;
  EXPECT_EQ(byte_order_mark(MappedFile(folder.write("a", "\xef\xbb\xbfx"))), 3);
  EXPECT_EQ(byte_order_mark(MappedFile(folder.write("b", "\xef\xbb"))), 0);
}

} // namespace
} // namespace palimpsest
