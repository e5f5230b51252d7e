#pragma once

// A model: blocks in order, the terminal block, the units that hold their parameters, and the
// layers that policies count.
//
//   Chain chain = build_decoder(config, ...);
//   for (const ChainBlock& entry : chain.blocks) { entry.block->forward(...); }

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/plan/cost_model.h>

#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

struct ChainBlock {
  std::unique_ptr<Block> block;
  std::string name; // "model.layers.3.mlp"
  std::vector<ValueRef> reads; // earlier blocks' values
  std::vector<ValueRef> saves; // the reads that its backward needs again
  int values = 1; // how many it writes
  std::vector<int> units; // into Chain::units
  bool backward_reads_units = true; // an embedding's backward does not need its weights
};

/// A named run of blocks: what policies, users and formulas call a layer.
struct ChainLayer {
  std::string name;
  BlockRange blocks;
};

struct Chain {
  std::vector<std::unique_ptr<ParamUnit>> units; // blocks hold pointers to them
  std::vector<ChainBlock> blocks; // without the terminal block
  std::unique_ptr<TerminalBlock> terminal;
  std::vector<ValueRef> terminal_reads;
  std::vector<int> terminal_units;
  std::vector<ChainLayer> layers;

  /// The terminal block's number in the plan: one past the last block.
  int terminal_index() const {
    return static_cast<int>(blocks.size());
  }
  /// Elements of all parameters, and of those that are trained.
  int64_t parameter_count() const;
  int64_t trained_count() const;
};

} // namespace palimpsest
