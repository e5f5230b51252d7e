#include <palimpsest/core/data/records/mapped_data.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gtest/gtest.h>

#include <fstream>
#include <vector>

namespace palimpsest {
namespace {

TEST(Scan, VisitsEveryByteOnce) {
  const TemporaryFolder folder;
  std::string text(9'000'001, 'x');
  text.back() = 'y';
  const MappedFile file = open_data_file(folder.write("a", text));
  size_t next = 0;
  char last = 0;
  scan(file, [&](std::span<const std::byte> part, size_t offset) {
    EXPECT_EQ(offset, next);
    EXPECT_EQ(offset % 8, 0);
    next += part.size();
    last = std::to_integer<char>(part.back());
  });
  EXPECT_EQ(next, text.size());
  EXPECT_EQ(last, 'y');
}

int64_t mapped_file_pages() {
  std::ifstream stream("/proc/self/statm");
  int64_t size = 0;
  int64_t resident = 0;
  int64_t shared = 0;
  stream >> size >> resident >> shared;
  return shared;
}

TEST(ReleaseAround, KeepsReadingOutOfTheProcessMemory) {
  const TemporaryFolder folder;
  const MappedFile file = open_data_file(folder.write("a", std::string(32 << 20, 'x')));
  const int64_t before = mapped_file_pages();
  const auto bytes = file.bytes();
  int64_t sum = 0;
  for (size_t offset = 0; offset + 1000 <= bytes.size(); offset += 1000) {
    const auto row = bytes.subspan(offset, 1000);
    sum += std::to_integer<int64_t>(row.front()) + std::to_integer<int64_t>(row.back());
    release_around(file, row);
  }
  EXPECT_EQ(sum, int64_t{2} * 'x' * ((32 << 20) / 1000));
  EXPECT_LT(mapped_file_pages() - before, 1024); // of 8,192
}

TEST(ShiftLabels, EndsWithoutATarget) {
  const std::vector<int64_t> ids = {3, -100, 5};
  std::vector<int64_t> labels(3);
  shift_labels(ids, labels.data());
  EXPECT_EQ(labels, (std::vector<int64_t>{-100, 5, -100}));
}

} // namespace
} // namespace palimpsest
