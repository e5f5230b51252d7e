#include <palimpsest/core/data/examples/text_examples.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

TextExamples::TextExamples(const std::vector<std::filesystem::path>& paths, TextEncoder encoder)
    : encoder_(std::move(encoder)) {
  check(!paths.empty(), "text of no file");
  int64_t chunks = 0;
  for (const std::filesystem::path& path : paths) {
    files_.emplace_back(path, encoder_.last_cut);
    chunks += files_.back().size();
    ends_.push_back(chunks);
  }
}

TextExamples::Place TextExamples::place(int64_t index) const {
  check(index >= 0 && index < size(), "chunk {} of {}", index, size());
  const auto file =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), index) - ends_.begin());
  return {files_[file], index - (file == 0 ? 0 : ends_[file - 1])};
}

TokenExample TextExamples::read(int64_t index) const {
  const auto [file, chunk] = place(index);
  const TemplateTokens around = encoder_.around();
  std::string text(file.chunk(chunk));
  file.release(chunk);
  if (chunk == 0) {
    text.insert(0, around.bos);
  }
  if (chunk + 1 == file.size()) {
    text += around.eos;
  }
  TokenExample example{.ids = chunk == 0 ? encoder_.encode(text) : encoder_.encode_rest(text)};
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

std::string TextExamples::location(int64_t index) const {
  const auto [file, chunk] = place(index);
  return fmt::format("{}, piece {} of {}", file.path().string(), chunk + 1, file.size());
}

} // namespace palimpsest
