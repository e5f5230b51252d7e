#include <palimpsest/core/data/examples/record_examples.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

RecordExamples::RecordExamples(
    const std::vector<std::filesystem::path>& paths,
    RecordFormat format,
    ExampleText text,
    TextEncoder encoder)
    : format_(std::move(format)), text_(std::move(text)), encoder_(std::move(encoder)) {
  check(!paths.empty(), "records of no file");
  int64_t examples = 0;
  for (const std::filesystem::path& path : paths) {
    files_.emplace_back(path);
    examples += files_.back().size();
    ends_.push_back(examples);
  }
}

RecordExamples::Place RecordExamples::place(int64_t index) const {
  check(index >= 0 && index < size(), "example {} of {}", index, size());
  const auto file =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {files_[file], index - (file == 0 ? 0 : ends_[file - 1])};
}

TokenExample RecordExamples::read(int64_t index) const {
  const auto [file, record] = place(index);
  return file.located(record, [&, &source = file, number = record] {
    const TargetText text = text_.render(format_.example(source.read(number)));
    return encode_targets(encoder_.encode, text.text, text.targets);
  });
}

std::string RecordExamples::location(int64_t index) const {
  const auto [file, record] = place(index);
  return file.location(record);
}

} // namespace palimpsest
