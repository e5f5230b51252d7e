#pragma once

// What a plan must know of a model: bytes, seconds and FLOPs of its blocks, and who reads what from
// whom.
//
//   ModelCost model;
//   model.units.push_back({.name = "embedding", .parameter_bytes = 4096, .gradient_bytes = 4096, .state_bytes = 8192});
//   model.blocks.push_back({.name = "embedding", .reads = {{kLoader, 0}}, .value_bytes = {512}, .units = {0}});
//   model.layers.push_back({.name = "layers.0", .blocks = {1, 3}});
//   model.validate();
//
// A model is a chain of blocks in execution order; the last one is terminal (head and loss): with a
// tape its FORWARD is its BACKWARD too. Bytes are those of the largest micro-batch, seconds and
// FLOPs those of one execution.

#include <palimpsest/core/plan/op.h>
#include <palimpsest/core/plan/slot.h>

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

/// Blocks begin <= block < end.
struct BlockRange {
  int begin = 0;
  int end = 0;

  auto operator<=>(const BlockRange&) const = default;
  bool contains(int block) const {
    return begin <= block && block < end;
  }
  bool empty() const {
    return begin >= end;
  }
  int size() const {
    return empty() ? 0 : end - begin;
  }
};

/// Elements that a border between shards never parts, which take whole bytes where one may not.
inline constexpr int64_t kByteBlock = 64;

/// What is sharded, gathered, reduced and updated as one. Bytes are those of the whole, not of a
/// shard.
struct UnitCost {
  std::string name{};
  int64_t elements = 0; ///< of its parameters; 0: not known, so shards are cut to a byte, unpadded
  int64_t parameter_bytes = 0; ///< as they are held: whole bytes for each kByteBlock elements
  int64_t gradient_bytes = 0; ///< of the accumulation buffer
  int64_t state_bytes = 0; ///< master weights and moments
  bool frozen = false; ///< no gradient, no state
  int64_t update_workspace = 0;
  double update_seconds = 0;
};

/// The producer's `index`-th value; producer kLoader: the micro-batch.
struct ValueRef {
  int producer = kLoader;
  int index = 0;

  auto operator<=>(const ValueRef&) const = default;
};

/// A number for each way a FORWARD may be asked to run.
template <typename T>
struct PerTape {
  T none{};
  T lean{};
  T full{};

  const T& of(TapeMode tape) const {
    return tape == TapeMode::kNone ? none : tape == TapeMode::kLean ? lean : full;
  }
};

struct BlockCost {
  std::string name{};
  std::vector<ValueRef> reads{}; ///< distinct values of earlier blocks
  std::vector<int64_t> value_bytes{}; ///< of each value it writes; empty for the terminal block
  std::vector<int> units{}; ///< distinct

  /// The reads whose storages the tape shares: BACKWARD reads them as values, so they are counted
  /// once and are not part of the tape's bytes. Empty: all that it reads.
  std::optional<std::vector<ValueRef>> saves{};
  int64_t lean_bytes = 0; ///< of a lean tape
  int64_t full_bytes = 0; ///< of a full tape
  int64_t weight_jobs_bytes = 0; ///< what part=input leaves for part=weight; owns all its storages

  PerTape<int64_t>
      forward_workspace{}; ///< for the terminal block, lean and full include its gradients' transients
  PerTape<int64_t>
      backward_workspace{}; ///< of part=both and part=input from a lean or full tape; `none` is unused
  int64_t weight_workspace = 0; ///< of part=weight

  double forward_seconds = 0; ///< for the terminal block: with a tape, so gradients included
  double input_seconds = 0;
  double weight_seconds = 0;
  double lean_seconds = 0; ///< BACKWARD from a lean tape takes this much longer

  double forward_flops = 0;
  /// Of these, what a FORWARD that leaves a tape and yields nothing is spared: a rerun whose values
  /// nobody reads. `none` is unused.
  PerTape<double> value_seconds{};
  double value_flops = 0;
  double backward_flops =
      0; ///< of both parts; for the terminal block too, in its FORWARD with a tape
  double lean_flops = 0; ///< redone by BACKWARD from a lean tape

  bool backward_reads_units = true; ///< an embedding's BACKWARD does not need its weights
};

/// A named run of blocks (a decoder layer, a level of a U-Net): what recompute policies count.
struct LayerCost {
  std::string name{};
  BlockRange blocks{};
};

struct ModelCost {
  std::vector<BlockCost> blocks{};
  std::vector<UnitCost> units{};
  std::vector<LayerCost> layers{}; ///< disjoint, in order; embedding and head are not layers
  int64_t batch_bytes =
      0; ///< of value(loader, 0, mb): token ids, labels and what else needs no gradient

  int terminal() const {
    return static_cast<int>(blocks.size()) - 1;
  }

  /// Throws UserError naming the block, unit or layer that breaks a rule stated above.
  void validate() const;
};

} // namespace palimpsest
