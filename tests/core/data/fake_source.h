#pragma once

// Samples given as vectors.

#include <palimpsest/tests/core/data/read_sample.h>

#include <algorithm>

namespace palimpsest {

class FakeSource final : public SampleSource {
 public:
  explicit FakeSource(std::vector<TokenSample> samples) : samples_(std::move(samples)) {}

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
  void read(int64_t sample, void* inputs, void* labels) const override {
    const TokenSample& from = samples_.at(static_cast<size_t>(sample));
    std::ranges::copy(from.inputs, static_cast<int64_t*>(inputs));
    std::ranges::copy(from.labels, static_cast<int64_t*>(labels));
  }

 private:
  std::vector<TokenSample> samples_;
};

} // namespace palimpsest
