#include <palimpsest/core/data/examples/record_examples.h>

#include <palimpsest/core/base/error.h>

#include <utility>

namespace palimpsest {

RecordExamples::RecordExamples(
    const std::vector<std::filesystem::path>& paths,
    RecordFormat format,
    ExampleText text,
    TextEncoder encoder)
    : format_(std::move(format)), text_(std::move(text)), encoder_(std::move(encoder)) {
  check(!paths.empty(), "records of no file");
  for (const std::filesystem::path& path : paths) {
    files_.emplace_back(path);
    places_.add(files_.back().size());
  }
}

TokenExample RecordExamples::read(int64_t index) const {
  const Places::Place place = places_[index];
  const RecordFile& file = files_[place.source];
  return file.located(place.item, [&] {
    return encode_example(encoder_, text_.render(format_.example(file.read(place.item))));
  });
}

std::string RecordExamples::location(int64_t index) const {
  const Places::Place place = places_[index];
  return files_[place.source].location(place.item);
}

} // namespace palimpsest
