#include <palimpsest/core/data/example_rows.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/labels.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/data/examples/packing.h>

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

namespace palimpsest {

ExampleRows::ExampleRows(
    std::unique_ptr<TokenExamples> examples,
    const ExampleSettings& settings,
    Notes& notes)
    : ExampleSource(std::move(examples), settings) {
  choose(notes);
  make_rows(notes);
}

/// The examples that teach something, and their lengths.
void ExampleRows::choose(Notes& notes) {
  const int64_t row = input_size();
  const std::vector<ExampleSize> sizes = measure();
  struct Count {
    int64_t examples = 0;
    int64_t first = -1;
    void add(int64_t example) {
      first = examples++ == 0 ? example : first;
    }
  };
  Count cut;
  Count without;
  int64_t tokens = 0;
  int64_t lost = 0;
  for (int64_t i = 0; i < tokenized().size(); ++i) {
    const ExampleSize& size = sizes[static_cast<size_t>(i)];
    if (!size.learns) {
      without.add(i);
      continue;
    }
    tokens += size.tokens;
    if (size.tokens > row) {
      cut.add(i);
      lost += size.tokens - row;
    }
    chosen_.push_back(i);
    lengths_.push_back(static_cast<int32_t>(std::min<int64_t>(size.tokens, row)));
  }
  if (chosen_.empty()) {
    throw UserError(
        "{}: none of {} has a target in its first {} tokens; check data.loss_on, "
        "data.sequence_length and data.chat_template",
        tokenized().name(),
        counted(tokenized().size(), "sample"),
        row);
  }
  if (cut.examples > 0) {
    notes.push_back(fmt::format(
        "{}: {} of {} are longer than data.sequence_length ({}) and are cut, which loses "
        "{:.2g} % of all tokens; the first is {}",
        tokenized().name(),
        cut.examples,
        counted(tokenized().size(), "sample"),
        row,
        100.0 * static_cast<double>(lost) / static_cast<double>(tokens),
        tokenized().location(cut.first)));
  }
  if (without.examples > 0) {
    notes.push_back(fmt::format(
        "{}: {} of {} have no target in their first {} tokens and are left out; the first "
        "is {}",
        tokenized().name(),
        without.examples,
        counted(tokenized().size(), "sample"),
        row,
        tokenized().location(without.first)));
  }
}

void ExampleRows::make_rows(Notes& notes) {
  if (!packed()) {
    row_ends_.resize(chosen_.size());
    std::iota(row_ends_.begin(), row_ends_.end(), 1);
    return;
  }
  Packs packs = pack(lengths_, input_size());
  const auto in_order = [&](const auto& values) {
    std::remove_cvref_t<decltype(values)> ordered;
    ordered.reserve(values.size());
    for (const int64_t item : packs.items) {
      ordered.push_back(values[static_cast<size_t>(item)]);
    }
    return ordered;
  };
  chosen_ = in_order(chosen_);
  lengths_ = in_order(lengths_);
  row_ends_ = std::move(packs.ends);
  const auto tokens = std::accumulate(lengths_.begin(), lengths_.end(), int64_t{0});
  notes.push_back(fmt::format(
      "{}: {} packed into {} of {} tokens, {:.1f} % full",
      tokenized().name(),
      counted(std::ssize(chosen_), "sample"),
      counted(size(), "row"),
      input_size(),
      100.0 * static_cast<double>(tokens) / static_cast<double>(size() * input_size())));
}

/// Positions in chosen_.
ExampleRows::Range ExampleRows::row(int64_t sample) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  const auto i = static_cast<size_t>(sample);
  return {static_cast<size_t>(i == 0 ? 0 : row_ends_[i - 1]), static_cast<size_t>(row_ends_[i])};
}

std::vector<int64_t> ExampleRows::documents(int64_t sample) const {
  const auto [begin, end] = row(sample);
  return {
      lengths_.begin() + static_cast<int64_t>(begin), lengths_.begin() + static_cast<int64_t>(end)};
}

void ExampleRows::read(int64_t sample, void* inputs, void* labels) const {
  const auto row_size = static_cast<size_t>(input_size());
  const std::span ids(static_cast<int64_t*>(inputs), row_size);
  const std::span targets(static_cast<int64_t*>(labels), row_size);
  std::ranges::fill(ids, 0);
  std::ranges::fill(targets, kIgnoredLabel);
  size_t at = 0;
  const auto [begin, end] = row(sample);
  for (size_t item = begin; item < end; ++item) {
    const TokenExample example = tokenized().read(chosen_[item]);
    const auto length = static_cast<size_t>(lengths_[item]);
    require_unchanged(
        tokenized(),
        chosen_[item],
        std::min(std::ssize(example.ids), input_size()),
        lengths_[item]);
    for (size_t t = 0; t < length; ++t) {
      ids[at + t] = example.ids[t];
      if (t > 0 && example.targets[t] != 0) {
        targets[at + t - 1] = example.ids[t];
      }
    }
    at += length;
  }
}

} // namespace palimpsest
