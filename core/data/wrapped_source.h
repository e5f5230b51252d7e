#pragma once

// Samples that are another source's: what a wrapper does not change is said here once.
//
//   class Reversed final : public WrappedSource {
//     using WrappedSource::WrappedSource;
//     void read(int64_t sample, void* inputs, void* labels) const override {
//       source_->read(size() - 1 - sample, inputs, labels);
//     }
//   };

#include <palimpsest/core/data/sample_source.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace palimpsest {

class WrappedSource : public SampleSource {
 public:
  explicit WrappedSource(std::shared_ptr<const SampleSource> source) : source_(std::move(source)) {}

  SampleKind kind() const override {
    return source_->kind();
  }
  int64_t size() const override {
    return source_->size();
  }
  int64_t input_size() const override {
    return source_->input_size();
  }
  int64_t label_size() const override {
    return source_->label_size();
  }
  bool packed() const override {
    return source_->packed();
  }
  std::vector<int64_t> documents(int64_t sample) const override {
    return source_->documents(sample);
  }

 protected:
  const std::shared_ptr<const SampleSource> source_;
};

} // namespace palimpsest
