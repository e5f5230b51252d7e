#include <palimpsest/core/models/mlp_chain.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/linear_block.h>
#include <palimpsest/core/models/squared_error.h>

#include <cmath>
#include <memory>
#include <string>

namespace palimpsest {

Chain build_mlp_chain(const MlpChainConfig& config) {
  if (config.widths.size() < 2) {
    throw UserError(
        "model.widths: {} given; give at least two, those of the input and the output",
        config.widths.size());
  }
  for (const int64_t width : config.widths) {
    if (width <= 0) {
      throw UserError("model.widths: {} is not allowed; a width is at least 1", width);
    }
  }
  const TrainableFilter trainable =
      config.trainable ? config.trainable : [](const std::string&) { return true; };
  Chain chain;
  const int layers = static_cast<int>(config.widths.size()) - 1;
  for (int layer = 0; layer < layers; ++layer) {
    const int64_t in = config.widths[static_cast<size_t>(layer)];
    const int64_t out = config.widths[static_cast<size_t>(layer) + 1];
    const std::string name = "layers." + std::to_string(layer);
    std::vector<std::vector<Parameter>> groups = {{{.name = name + ".weight", .shape = {out, in}}}};
    groups.emplace_back();
    if (config.bias) {
      groups.back().push_back({.name = name + ".bias", .shape = {out}});
    }
    const BlockUnits made =
        add_units(chain, name, groups, config.compute, trainable, config.frozen);
    LinearLayer linear{.weight = made.refs[0], .bias = made.refs[1], .activation = {}};
    if (layer > 0) {
      linear.activation = config.activation;
    }
    const ValueRef read = layer == 0 ? ValueRef{kLoader, 0} : ValueRef{layer - 1, 0};
    chain.blocks.push_back(
        {.block = std::make_unique<LinearBlock>(linear),
         .name = name,
         .reads = {read},
         .saves = {read},
         .values = 1,
         .units = made.units});
    chain.layers.push_back({.name = name, .blocks = {layer, layer + 1}});
  }
  chain.terminal = std::make_unique<SquaredErrorBlock>();
  chain.terminal_reads = {{layers - 1, 0}};
  return chain;
}

void initialise_mlp_chain(Chain& chain, uint64_t seed, const UnitSource& source) {
  initialise(chain, source, seed, [](const Parameter& parameter) -> Initial {
    if (parameter.shape.size() < 2) {
      return {};
    }
    return {.std = 1 / std::sqrt(static_cast<double>(parameter.shape[1]))};
  });
}

} // namespace palimpsest
