#include <palimpsest/core/contracts/chain.h>

namespace palimpsest {

int64_t Chain::parameter_count() const {
  int64_t count = 0;
  for (const auto& unit : units) {
    for (const Parameter& parameter : unit->parameters()) {
      count += parameter.numel;
    }
  }
  return count;
}

int64_t Chain::trained_count() const {
  int64_t count = 0;
  for (const auto& unit : units) {
    count += unit->trainable() ? unit->numel() : 0;
  }
  return count;
}

} // namespace palimpsest
