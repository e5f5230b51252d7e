#pragma once

// Samples given as vectors.

#include <palimpsest/tests/core/data/read_sample.h>

#include <algorithm>

namespace palimpsest {

class FakeSource final : public SampleSource {
 public:
  /// With `documents`, their lengths in each sample, the samples are packed.
  explicit FakeSource(
      std::vector<TokenSample> samples,
      std::vector<std::vector<int64_t>> documents = {})
      : samples_(std::move(samples)), documents_(std::move(documents)) {}

  SampleKind kind() const override {
    return SampleKind::kTokens;
  }
  int64_t size() const override {
    return std::ssize(samples_);
  }
  int64_t input_size() const override {
    return std::ssize(samples_.front().inputs);
  }
  int64_t label_size() const override {
    return std::ssize(samples_.front().labels);
  }
  bool packed() const override {
    return !documents_.empty();
  }
  std::vector<int64_t> documents(int64_t sample) const override {
    return packed() ? documents_.at(static_cast<size_t>(sample)) : std::vector{input_size()};
  }
  void read(int64_t sample, void* inputs, void* labels) const override {
    const TokenSample& from = samples_.at(static_cast<size_t>(sample));
    std::ranges::copy(from.inputs, static_cast<int64_t*>(inputs));
    std::ranges::copy(from.labels, static_cast<int64_t*>(labels));
  }

 private:
  std::vector<TokenSample> samples_;
  std::vector<std::vector<int64_t>> documents_;
};

} // namespace palimpsest
