#include <palimpsest/core/models/models.h>

namespace palimpsest {
namespace {

ModelFamily llama() {
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
  families.add("llama", llama());
  families.add("mlp", mlp());
}

} // namespace palimpsest
