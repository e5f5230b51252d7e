#pragma once

// A chain of linear layers with activations and a regression loss: the smallest model, with closed
// forms for everything.
//
//   Chain chain = build_mlp_chain({.widths = {16, 64, 64, 8}, .activation = kernels::Activation::kRelu});
//
// Layer N is one block named layers.N with one unit (layers.N.weight, layers.N.bias), which begins
// with the activation of what layer N - 1 wrote. Inputs are float [B, widths.front()], targets float [B, widths.back()].

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/models/param_ref.h>
#include <palimpsest/core/models/weights.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace palimpsest {

struct MlpChainConfig {
  std::vector<int64_t> widths; // input, hidden layers, output
  kernels::Activation activation = kernels::Activation::kRelu;
  bool bias = true;
  at::ScalarType compute = at::kFloat;
  TrainableFilter trainable = {}; // empty: all parameters
  std::shared_ptr<const ParamCodec> frozen = {}; // holds the weights that are not trained
};

/// UserError where there are fewer than two widths or one is not positive.
Chain build_mlp_chain(const MlpChainConfig& config);

/// Weights N(0, 1 / inputs of the layer), biases 0.
void initialise_mlp_chain(Chain& chain, uint64_t seed, const UnitSource& source);

} // namespace palimpsest
