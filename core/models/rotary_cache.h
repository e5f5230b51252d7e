#pragma once

// The rotary table of a model, made when a longer sequence comes.
//
//   RotaryCache rotary(config.rope, config.head_dim, config.max_position_embeddings);
//   kernels::rotary_forward_(q, rotary.table(/*length=*/512));
//
// A pure function of the length: the dynamic type, whose frequencies depend on it, gets a table of
// its own for each length beyond the model's. One per chain, used from one thread.

#include <palimpsest/core/io/rope.h>
#include <palimpsest/core/kernels/rotary.h>

#include <cstdint>
#include <optional>
#include <span>

namespace palimpsest {

/// A token of a sequence that is generated: where it stands, and how long the sequence is with it and
/// what is read along with it.
struct TokenPlace {
  int64_t position = 0;
  int64_t length = 0;
};

class RotaryCache {
 public:
  RotaryCache(RopeConfig rope, int64_t head_dim, int64_t max_position_embeddings)
      : rope_(rope), head_dim_(head_dim), max_position_embeddings_(max_position_embeddings) {}

  /// For positions 0 .. length-1, maybe more. Valid until the next call.
  const kernels::RotaryTable& table(int64_t length);

  /// A row for each of these tokens. A token is rotated by the length that its sequence has when it
  /// is read, and stays so when the sequence grows: as in transformers' generation with a cache.
  kernels::RotaryTable rows(std::span<const TokenPlace> places) const;

 private:
  RopeConfig rope_;
  int64_t head_dim_;
  int64_t max_position_embeddings_;
  int64_t length_ = 0;
  std::optional<kernels::RotaryTable> table_;
};

} // namespace palimpsest
