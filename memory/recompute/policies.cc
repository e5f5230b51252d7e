#include <palimpsest/memory/recompute/policies.h>

#include <palimpsest/core/base/error.h>

namespace palimpsest {

std::vector<Policy> policies() {
  return {
      {"none", "every layer keeps its activations", none},
      {"full", "every layer runs again; only its input is kept", full},
      {"every_n", "every n-th layer's input is kept; runs of n layers run again", every_n},
      {"uniform", "segments of equally many layers run again", uniform},
      {"sqrt", "uniform with as many segments as the square root of the layers", sqrt_layers},
      {"key_layers", "chosen layers run again, or the count dearest to redo are kept", key_layers},
  };
}

Policy find_policy(std::string_view name) {
  std::string names;
  for (const Policy& policy : policies()) {
    if (policy.name == name) {
      return policy;
    }
    names += (names.empty() ? "" : ", ") + std::string(policy.name);
  }
  throw UserError(
      "activation_checkpointing: policy '{}' is unknown; choose one of {}", name, names);
}

} // namespace palimpsest
