#pragma once

// Chains that no config names, for ChainRun (chain_run.h).

#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/param_ref.h>
#include <palimpsest/tests/core/engine/scalar_chain.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::testing {

/// y = w x with one weight, "w0"; the loss is the sum.
inline Chain one_weight_chain() {
  thread_local Counts counts; // ranks are threads
  return scalar_chain(1, {0}, counts);
}

/// Appends a layer of one block with one fp32 weight of its name, which reads the block before.
inline void add_layer(
    Chain& chain,
    const std::string& name,
    const std::vector<int64_t>& shape,
    const std::function<std::unique_ptr<Block>(const ParamRef& weight)>& block) {
  const int index = static_cast<int>(chain.blocks.size());
  const BlockUnits made = add_units(
      chain, name, {{{.name = name, .shape = shape}}}, at::kFloat, [](const std::string&) {
        return true;
      });
  ChainBlock entry;
  entry.block = block(made.refs[0]);
  entry.name = name;
  entry.reads = entry.saves = {{index - 1, 0}};
  entry.units = made.units;
  chain.blocks.push_back(std::move(entry));
  chain.layers.push_back({name, {index, index + 1}});
}

/// Ends a chain of such layers: the loss is the sum of what the last one yields.
inline void add_sum_loss(Chain& chain) {
  chain.terminal = std::make_unique<SumLoss>();
  chain.terminal_reads = {{static_cast<int>(chain.blocks.size()) - 1, 0}};
}

/// Four layers, 67 ids.
inline DecoderConfig tiny_decoder() {
  DecoderConfig config;
  config.vocab_size = 67;
  config.hidden_size = 24;
  config.intermediate_size = 56;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  return complete_decoder_config(config, "model");
}

} // namespace palimpsest::testing
