#include <palimpsest/core/models/models.h>

#include <string>

namespace palimpsest {
namespace {

ModelFamily decoder() {
  return {
      .build =
          [](const ModelSettings& settings) {
            return build_decoder(settings.decoder, settings.decoder_options);
          },
      .initialise =
          [](Chain& chain, const ModelSettings& settings, uint64_t seed, const UnitSource& source) {
            initialise_decoder(chain, settings.decoder, seed, source);
          }};
}

ModelFamily mlp() {
  return {
      .build = [](const ModelSettings& settings) { return build_mlp_chain(settings.mlp); },
      .initialise = [](Chain& chain,
                       const ModelSettings& /*settings*/,
                       uint64_t seed,
                       const UnitSource& source) { initialise_mlp_chain(chain, seed, source); }};
}

} // namespace

void register_models(ModelRegistry& families) {
  for (const DecoderFamily& family : decoder_families()) {
    families.add(std::string(family.name), decoder());
  }
  families.add("mlp", mlp());
}

} // namespace palimpsest
