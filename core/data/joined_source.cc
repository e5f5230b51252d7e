#include <palimpsest/core/data/joined_source.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>

namespace palimpsest {

JoinedSource::JoinedSource(std::vector<std::unique_ptr<SampleSource>> sources)
    : sources_(std::move(sources)) {
  check(!sources_.empty(), "no source to join");
  const SampleSource& first = *sources_.front();
  int64_t samples = 0;
  for (const auto& source : sources_) {
    const bool alike = source->kind() == first.kind() &&
        source->input_size() == first.input_size() && source->label_size() == first.label_size();
    if (!alike) {
      throw UserError(
          "data.files: samples of {} and of {} elements cannot be mixed; give files with samples "
          "of one size",
          first.input_size(),
          source->input_size());
    }
    samples += source->size();
    ends_.push_back(samples);
  }
}

JoinedSource::Place JoinedSource::place(int64_t sample) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  const auto source =
      static_cast<size_t>(std::upper_bound(ends_.begin(), ends_.end(), sample) - ends_.begin());
  return {*sources_[source], sample - (source == 0 ? 0 : ends_[source - 1])};
}

bool JoinedSource::packed() const {
  return std::ranges::any_of(sources_, [](const auto& source) { return source->packed(); });
}

std::vector<int64_t> JoinedSource::documents(int64_t sample) const {
  const auto [source, own] = place(sample);
  return source.documents(own);
}

void JoinedSource::read(int64_t sample, void* inputs, void* labels) const {
  const auto [source, own] = place(sample);
  source.read(own, inputs, labels);
}

} // namespace palimpsest
