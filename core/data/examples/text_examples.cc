#include <palimpsest/core/data/examples/text_examples.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

#include <utility>

namespace palimpsest {

TextExamples::TextExamples(const std::vector<std::filesystem::path>& paths, TextEncoder encoder)
    : encoder_(std::move(encoder)) {
  check(!paths.empty(), "text of no file");
  for (const std::filesystem::path& path : paths) {
    files_.emplace_back(path, encoder_.last_cut);
    places_.add(files_.back().size());
  }
}

TokenExample TextExamples::read(int64_t index) const {
  const auto [source, chunk] = places_[index];
  const TextChunks& file = files_[source];
  const std::string_view text = file.chunk(chunk);
  TokenExample example{.ids = chunk == 0 ? encoder_.encode(text) : encoder_.encode_rest(text)};
  file.release(chunk);
  if (chunk == 0) {
    example.ids.insert(example.ids.begin(), encoder_.before.begin(), encoder_.before.end());
  }
  if (chunk + 1 == file.size()) {
    example.ids.insert(example.ids.end(), encoder_.after.begin(), encoder_.after.end());
  }
  example.targets.assign(example.ids.size(), 1);
  return example;
}

int64_t TextExamples::forced_cuts() const {
  int64_t cuts = 0;
  for (const TextChunks& file : files_) {
    cuts += file.forced_cuts();
  }
  return cuts;
}

std::vector<std::string> TextExamples::notes() const {
  if (forced_cuts() == 0) {
    return {};
  }
  return {fmt::format(
      "{}: cut at {} where the tokenizer would not be, as it allows no cut for 1 MiB",
      name(),
      counted(forced_cuts(), "place"))};
}

std::string TextExamples::location(int64_t index) const {
  const auto [source, chunk] = places_[index];
  const TextChunks& file = files_[source];
  return fmt::format("{}, piece {} of {}", file.path().string(), chunk + 1, file.size());
}

} // namespace palimpsest
