#pragma once

// Requests for a small model on slow hardware, so that every technique pays for something.

#include <palimpsest/launcher/compose/world_search.h>

namespace palimpsest::testing {

inline WorldRequest small_request() {
  WorldRequest request;
  request.model = complete_decoder_config(
      {.vocab_size = 512,
       .hidden_size = 128,
       .intermediate_size = 352,
       .num_hidden_layers = 6,
       .num_attention_heads = 4,
       .num_key_value_heads = 2},
      "test");
  request.decoder.compute = at::kBFloat16;
  request.tokens = 256;
  request.hardware = parse_hardware(
      "{flops: {bf16: 1e12, fp32: 1e12}, memory: 64MiB, bandwidth: 1e11, latency: 1e-6, "
      "ranks_per_node: 4, node: {bandwidth: 2e10, latency: 2e-6}, "
      "network: {bandwidth: 2e9, latency: 1e-5}}",
      "small.yaml");
  request.budget = request.hardware.memory();
  return request;
}

} // namespace palimpsest::testing
