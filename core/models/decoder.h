#pragma once

// A decoder of any family as a chain: embedding, per layer attention and MLP, head with loss.
//
//   Chain chain = build_decoder(config, {.compute = at::kBFloat16});
//   initialise_decoder(chain, config, /*seed=*/42, source);      // or load_weights (weights.h)
//
// What a family does differently stands in its DecoderFamily; here its entries become the shapes and
// weights of the same few blocks. Parameters carry Hugging Face's names. A block's parameters are one
// unit (norm gain and weights; q, k, v and gate, up are neighbours, so that each is one product where
// they are trained alike), its frozen ones another; a tied embedding is a unit of its own that the
// head shares, whose norm then has its own, and so are learned positions. Layer N is named
// model.layers.N (GPT-2: transformer.h.N) and runs over two blocks.

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/io/adapter_set.h>
#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/models/param_ref.h>
#include <palimpsest/core/models/weights.h>

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace palimpsest {

struct DecoderOptions {
  at::ScalarType compute = at::kFloat; // or at::kBFloat16: of parameters and activations
  double residual_dropout = 0; // of what attention and MLP add
  double embedding_dropout = 0;
  TrainableFilter trainable = {}; // empty: all parameters
  /// Holds the layers' linear weights that are not trained; null: nothing does. Norms, biases,
  /// embeddings and head stay as they are.
  std::shared_ptr<const ParamCodec> frozen = {};
  AdapterSet adapters = {}; // where there are some, they alone are trained
  int64_t head_chunk_bytes = int64_t{16} << 20; // of one chunk's logits
};

/// The kernel of an activation that a config names.
kernels::Activation activation_of(HiddenAct act);

/// Linear weights that are one product, and their biases as far as they have any.
struct ProductTensors {
  TensorGroup weights;
  TensorGroup biases;
};
/// Neighbours cut where they are not trained alike, weights or biases: runs as long as can be.
std::vector<ProductTensors> products_of(
    const TensorGroup& weights,
    const TensorGroup& biases,
    const TrainableFilter& trainable);

Chain build_decoder(const DecoderConfig& config, const DecoderOptions& options = {});

/// As transformers initialises the family: linear and embedding weights N(0, initializer_range^2),
/// GPT-2's output projections smaller by sqrt(2 layers), biases 0, norm gains 1 (Gemma's 1 + 0).
/// Adapters are left alone (initialise_adapters in weights.h).
void initialise_decoder(
    Chain& chain,
    const DecoderConfig& config,
    uint64_t seed,
    const UnitSource& source);

} // namespace palimpsest
