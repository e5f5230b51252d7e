#pragma once

// The order of the samples in an epoch of several sources with weights, as a pure function.
//
//   const Mixture mixture({{.samples = 1000, .weight = 1}, {.samples = 90, .weight = 2.5}});
//   mixture.size();                                  // 1225 samples in an epoch
//   const MixtureOrder order(mixture, /*seed=*/42, /*epoch=*/3, /*shuffle=*/true);
//   order[0];                                        // a sample of the joined sources
//
// A weight says how often an epoch takes each sample of the source: an epoch takes round(weight x
// samples) of it. Each source goes on where the epoch before ended and is taken round after round,
// so that after any number of epochs no sample was taken twice more than another of its source.

#include <palimpsest/core/data/epoch_order.h>

#include <cstdint>
#include <vector>

namespace palimpsest {

struct MixturePart {
  int64_t samples = 0;
  double weight = 1;
};

class Mixture {
 public:
  /// Parts in the order in which the sources are joined. An epoch takes at least one sample of each.
  explicit Mixture(const std::vector<MixturePart>& parts);

  /// Samples of an epoch.
  int64_t size() const {
    return parts_.back().end;
  }

 private:
  friend class MixtureOrder;
  struct Part {
    int64_t samples; // of the source
    int64_t first; // its first sample among all
    int64_t taken; // by an epoch
    int64_t end; // of what it and the parts before give to an epoch
  };
  std::vector<Part> parts_;
};

class MixtureOrder {
 public:
  /// The mixture outlives it. With weights of 1 the order is EpochOrder's over all samples.
  MixtureOrder(const Mixture& mixture, uint64_t seed, int64_t epoch, bool shuffle);

  /// The sample at `position`, 0 <= position < mixture.size().
  int64_t operator[](int64_t position) const;

 private:
  const Mixture& mixture_;
  uint64_t seed_;
  int64_t epoch_;
  bool shuffle_;
  EpochOrder order_;
};

} // namespace palimpsest
