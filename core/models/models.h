#pragma once

// The model families by name.
//
//   ModelRegistry families("model.family");
//   register_models(families);
//   Chain chain = families.at("llama").build({.decoder = config, .decoder_options = {.compute = at::kBFloat16}});

#include <palimpsest/core/base/registry.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/mlp_chain.h>

#include <cstdint>
#include <functional>

namespace palimpsest {

/// What a family may read; each reads its own part.
struct ModelSettings {
  DecoderConfig decoder = {};
  DecoderOptions decoder_options = {};
  MlpChainConfig mlp = {};
};

struct ModelFamily {
  std::function<Chain(const ModelSettings&)> build;
  /// The family's initialisation of a chain that it built.
  std::function<void(Chain&, const ModelSettings&, uint64_t seed, const UnitSource&)> initialise;
};

using ModelRegistry = Registry<ModelFamily>;

void register_models(ModelRegistry& families);

} // namespace palimpsest
