#pragma once

// Several sources as one: the samples of the first, then those of the second, and so on.

#include <palimpsest/core/data/records/places.h>
#include <palimpsest/core/data/sample_source.h>

#include <memory>
#include <vector>

namespace palimpsest {

class JoinedSource final : public SampleSource {
 public:
  /// At least one source. DataFileError where their samples differ in kind or size.
  explicit JoinedSource(std::vector<std::unique_ptr<SampleSource>> sources);

  SampleKind kind() const override {
    return sources_.front()->kind();
  }
  int64_t size() const override {
    return places_.size();
  }
  int64_t input_size() const override {
    return sources_.front()->input_size();
  }
  int64_t label_size() const override {
    return sources_.front()->label_size();
  }
  bool packed() const override;
  std::vector<int64_t> documents(int64_t sample) const override;
  void read(int64_t sample, void* inputs, void* labels) const override;

 private:
  std::vector<std::unique_ptr<SampleSource>> sources_;
  Places places_;
};

} // namespace palimpsest
