#include <palimpsest/core/models/dropout_use.h>

#include <palimpsest/core/base/error.h>

namespace palimpsest {

DropoutUse dropout_use(double p, uint32_t block, uint32_t call, const BlockContext& context) {
  if (p == 0 || !context.training) {
    return {};
  }
  check(
      context.batch != nullptr && context.batch->rows.defined(),
      "dropout needs the rows' numbers in the step");
  return {
      .p = p,
      .key = {.seed = context.seed, .step = context.step, .block = block, .call = call},
      .rows = context.batch->rows};
}

} // namespace palimpsest
