#include <palimpsest/memory/recompute/layer_runs.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/pattern.h>
#include <palimpsest/core/base/words.h>

#include <algorithm>
#include <charconv>
#include <numeric>

namespace palimpsest {
namespace {

constexpr size_t kShown = 12; // names in a message

std::string layer_names(const ModelCost& model) {
  std::string names;
  for (size_t layer = 0; layer < std::min(model.layers.size(), kShown); ++layer) {
    names += (layer > 0 ? ", " : "") + model.layers[layer].name;
  }
  return names + (model.layers.size() > kShown ? ", ..." : "");
}

/// The layers that an entry names: a layer's name, else an index, else a regular expression over
/// whole names.
std::vector<int> named_layers(const ModelCost& model, const std::string& entry) {
  const int count = static_cast<int>(model.layers.size());
  for (int layer = 0; layer < count; ++layer) {
    if (model.layers[static_cast<size_t>(layer)].name == entry) {
      return {layer};
    }
  }
  int index = 0;
  const auto [end, status] = std::from_chars(entry.data(), entry.data() + entry.size(), index);
  if (end == entry.data() + entry.size() && !entry.empty()) {
    if (status != std::errc() || index < 0 || index >= count) {
      throw UserError(
          "activation_checkpointing.recompute: there is no layer {}; indices go from 0 to {}",
          entry,
          count - 1);
    }
    return {index};
  }
  std::vector<int> found;
  const Pattern pattern("activation_checkpointing.recompute", entry);
  for (int layer = 0; layer < count; ++layer) {
    if (pattern.matches(model.layers[static_cast<size_t>(layer)].name)) {
      found.push_back(layer);
    }
  }
  if (found.empty()) {
    throw UserError(
        "activation_checkpointing.recompute: '{}' names no layer; layers are {}",
        entry,
        layer_names(model));
  }
  return found;
}

/// Bytes that dropping a layer's activations saves per second of running it again.
double saving(const ModelCost& model, int layer, TapeMode kept) {
  double seconds = 0;
  int64_t bytes = 0;
  const BlockRange run = model.layers[static_cast<size_t>(layer)].blocks;
  for (int number = run.begin; number < run.end; ++number) {
    const BlockCost& block = model.blocks[static_cast<size_t>(number)];
    seconds += block.forward_seconds;
    bytes += kept == TapeMode::kLean ? block.lean_bytes : block.full_bytes;
    if (number + 1 < run.end) { // what the last block writes is the next layer's input
      bytes = std::accumulate(block.value_bytes.begin(), block.value_bytes.end(), bytes);
    }
  }
  if (!(seconds > 0)) {
    throw UserError(
        "activation_checkpointing.count: layer {} has no measured seconds to rank it by; profile "
        "the model first, or name layers with recompute",
        model.layers[static_cast<size_t>(layer)].name);
  }
  return static_cast<double>(bytes) / seconds;
}

/// All but the `count` layers that save least; among equals the later ones are kept, since their
/// backward is nearer.
std::vector<bool> all_but(const ModelCost& model, int count, TapeMode kept) {
  const int layers = static_cast<int>(model.layers.size());
  if (count < 0 || count > layers) {
    throw UserError(
        "activation_checkpointing.count: {} is not allowed; the model has {}, give 0 to {}",
        count,
        counted(layers, "layer"),
        layers);
  }
  std::vector<double> savings;
  for (int layer = 0; layer < layers; ++layer) {
    savings.push_back(saving(model, layer, kept));
  }
  std::vector<int> order(static_cast<size_t>(layers));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int one, int other) {
    return savings[static_cast<size_t>(one)] > savings[static_cast<size_t>(other)];
  });
  std::vector<bool> again(static_cast<size_t>(layers), false);
  for (int nth = 0; nth < layers - count; ++nth) {
    again[static_cast<size_t>(order[static_cast<size_t>(nth)])] = true;
  }
  return again;
}

} // namespace

Segments key_layers(const ModelCost& model, const PolicyOptions& options) {
  refuse_other_options("key_layers", options, {PolicyOption::kRecompute, PolicyOption::kCount});
  if (options.recompute.empty() != options.count.has_value()) {
    throw UserError(
        "activation_checkpointing: key_layers needs either recompute (names, regular expressions, "
        "indices) or count, not both");
  }
  std::vector<bool> again(model.layers.size(), false);
  if (options.count) {
    again = all_but(model, *options.count, options.kept_tape);
  }
  for (const std::string& entry : options.recompute) {
    for (const int layer : named_layers(model, entry)) {
      again[static_cast<size_t>(layer)] = true;
    }
  }
  std::vector<LayerRun> runs;
  for (int layer = 0; layer < static_cast<int>(again.size()); ++layer) {
    if (again[static_cast<size_t>(layer)]) {
      runs.push_back({layer, layer + 1});
    }
  }
  return recompute_runs(model, runs, options);
}

} // namespace palimpsest
