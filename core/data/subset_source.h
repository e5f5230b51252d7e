#pragma once

// Some of a source's samples, and which ones are held out for validation.
//
//   const std::shared_ptr<const SampleSource> all = ...;
//   const std::vector<int64_t> held_out = hold_out(all->size(), 0.02, /*seed=*/42);
//   const SubsetSource validation(all, held_out);
//   const SubsetSource training(all, held_out, /*all_but=*/true);

#include <palimpsest/core/data/wrapped_source.h>

#include <memory>
#include <vector>

namespace palimpsest {

/// round(fraction * samples) of the samples, at least one and not all, drawn by `seed`, in order. A
/// function of its arguments. Needs two samples.
std::vector<int64_t> hold_out(int64_t samples, double fraction, uint64_t seed);

class SubsetSource final : public WrappedSource {
 public:
  /// The samples `chosen`, in ascending order; or all but them.
  SubsetSource(
      std::shared_ptr<const SampleSource> source,
      std::vector<int64_t> chosen,
      bool all_but = false);

  int64_t size() const override;
  std::vector<int64_t> documents(int64_t sample) const override {
    return source_->documents(original(sample));
  }
  void read(int64_t sample, void* inputs, void* labels) const override {
    source_->read(original(sample), inputs, labels);
  }

  /// The sample's number in the whole source.
  int64_t original(int64_t sample) const;

 private:
  std::vector<int64_t> chosen_;
  bool all_but_;
};

} // namespace palimpsest
