#include <palimpsest/core/config/presets.h>

namespace palimpsest {

const std::vector<Preset>& presets() {
  static const std::vector<Preset> all = {
      {"tiny",
       "For trials and tests: a byte vocabulary and a few seconds per hundred steps on a laptop.",
       "{family: llama, hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, "
       "num_key_value_heads: 2, intermediate_size: 176, vocab_size: 256, "
       "max_position_embeddings: 512, tie_word_embeddings: true}"},
      {"bench-30m",
       "The shape of the benchmarks: 32 million parameters, untied.",
       "{family: llama, hidden_size: 512, num_hidden_layers: 8, num_attention_heads: 8, "
       "num_key_value_heads: 4, intermediate_size: 1408, vocab_size: 8192, "
       "max_position_embeddings: 2048, tie_word_embeddings: false}"},
  };
  return all;
}

} // namespace palimpsest
