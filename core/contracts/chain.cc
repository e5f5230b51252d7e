#include <palimpsest/core/contracts/chain.h>

namespace palimpsest {

int64_t Chain::parameter_count() const {
  int64_t count = 0;
  for (const auto& unit : units) {
    count += unit->numel();
  }
  return count;
}

} // namespace palimpsest
