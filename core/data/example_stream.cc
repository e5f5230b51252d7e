#include <palimpsest/core/data/example_stream.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/labels.h>
#include <palimpsest/core/data/records/mapped_data.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

ExampleStream::ExampleStream(
    std::unique_ptr<TokenExamples> examples,
    const ExampleSettings& settings,
    Notes& notes)
    : ExampleSource(std::move(examples), settings) {
  int64_t tokens = 0;
  for (const ExampleSize& size : measure()) {
    tokens += size.tokens;
    ends_.push_back(tokens);
  }
  if (tokens < input_size()) {
    throw UserError(
        "data.sequence_length: {} is longer than the {} tokens of {}",
        input_size(),
        tokens,
        tokenized().name());
  }
  if (const int64_t rest = tokens % input_size(); rest > 0) {
    notes.push_back(fmt::format(
        "{}: the last {} of {} tokens fill no row of {} and are left out",
        tokenized().name(),
        rest,
        tokens,
        input_size()));
  }
}

size_t ExampleStream::example_at(int64_t position) const {
  return static_cast<size_t>(
      std::upper_bound(ends_.begin(), ends_.end(), position) - ends_.begin());
}

std::vector<int64_t> ExampleStream::documents(int64_t sample) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  if (!packed()) {
    return {input_size()};
  }
  const int64_t begin = sample * input_size();
  const int64_t end = begin + input_size();
  std::vector<int64_t> lengths;
  int64_t document = begin;
  for (size_t i = example_at(begin) + 1; i < ends_.size() && begin_of(i) < end; ++i) {
    const int64_t next = begin_of(i);
    if (next > document && tokenized().begins_document(static_cast<int64_t>(i))) {
      lengths.push_back(next - document);
      document = next;
    }
  }
  lengths.push_back(end - document);
  return lengths;
}

void ExampleStream::read(int64_t sample, void* inputs, void* labels) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  const int64_t begin = sample * input_size();
  const int64_t end = begin + input_size();
  auto* ids = static_cast<int64_t*>(inputs);
  int64_t position = begin;
  for (size_t i = example_at(begin); position < end; ++i) {
    const TokenExample example = tokenized().read(static_cast<int64_t>(i));
    require_unchanged(
        tokenized(), static_cast<int64_t>(i), std::ssize(example.ids), ends_[i] - begin_of(i));
    const int64_t stop = std::min(end, ends_[i]);
    std::copy(
        example.ids.begin() + (position - begin_of(i)),
        example.ids.begin() + (stop - begin_of(i)),
        ids + (position - begin));
    position = stop;
  }
  auto* targets = static_cast<int64_t*>(labels);
  shift_labels({ids, static_cast<size_t>(input_size())}, targets);
  int64_t document_end = 0;
  for (const int64_t length : documents(sample)) {
    document_end += length;
    targets[document_end - 1] = kIgnoredLabel;
  }
}

} // namespace palimpsest
