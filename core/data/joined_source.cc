#include <palimpsest/core/data/joined_source.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/records/data_file_error.h>

#include <algorithm>

namespace palimpsest {

JoinedSource::JoinedSource(std::vector<std::unique_ptr<SampleSource>> sources)
    : sources_(std::move(sources)) {
  check(!sources_.empty(), "no source to join");
  const SampleSource& first = *sources_.front();
  for (const auto& source : sources_) {
    const bool alike = source->kind() == first.kind() &&
        source->input_size() == first.input_size() && source->label_size() == first.label_size();
    if (!alike) {
      throw DataFileError(
          "samples of {} and of {} elements cannot be mixed; give files with samples "
          "of one size",
          first.input_size(),
          source->input_size());
    }
    places_.add(source->size());
  }
}

bool JoinedSource::packed() const {
  return std::ranges::any_of(sources_, [](const auto& source) { return source->packed(); });
}

std::vector<int64_t> JoinedSource::documents(int64_t sample) const {
  const auto [source, own] = places_[sample];
  return sources_[source]->documents(own);
}

void JoinedSource::read(int64_t sample, void* inputs, void* labels) const {
  const auto [source, own] = places_[sample];
  sources_[source]->read(own, inputs, labels);
}

} // namespace palimpsest
