#include <palimpsest/core/data/records/file_kinds.h>

#include <palimpsest/core/data/records/data_file_error.h>

#include <array>
#include <string>
#include <string_view>

namespace palimpsest {

namespace {

using namespace std::string_view_literals;

struct Kind {
  std::string_view magic;
  const char* name;
  const char* conversion; // {0} is the file, {1} the file without its ending
};

constexpr auto kRefused = std::to_array<Kind>({
    {"PAR1"sv,
     "Parquet",
     R"py(python3 -c "import pandas; pandas.read_parquet('{0}').to_json('{1}.jsonl', orient='records', lines=True)")py"},
    {"ARROW1"sv,
     "Arrow",
     R"py(python3 -c "import pandas; pandas.read_feather('{0}').to_json('{1}.jsonl', orient='records', lines=True)")py"},
    {"\x1f\x8b"sv, "gzip", "gunzip -k {0}"},
    {"\x28\xb5\x2f\xfd"sv, "Zstandard", "unzstd {0}"},
    {"\xfd"
     "7zXZ"sv,
     "xz",
     "unxz -k {0}"},
    {"\xff\xfe"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 {0} > {1}.utf8"},
    {"\xfe\xff"sv, "UTF-16", "iconv -f UTF-16 -t UTF-8 {0} > {1}.utf8"},
});

bool begins_with(const MappedFile& file, std::string_view magic) {
  const std::string_view bytes(
      reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  return bytes.starts_with(magic);
}

} // namespace

void refuse_other_formats(const MappedFile& file) {
  for (const Kind& kind : kRefused) {
    if (begins_with(file, kind.magic)) {
      const std::string name = file.path().string();
      const std::string stem = (file.path().parent_path() / file.path().stem()).string();
      throw DataFileError(
          "{} is {}, which is not read; convert it first: {}",
          name,
          kind.name,
          fmt::format(fmt::runtime(kind.conversion), name, stem));
    }
  }
}

size_t byte_order_mark(const MappedFile& file) {
  return begins_with(file, "\xef\xbb\xbf") ? 3 : 0;
}

} // namespace palimpsest
