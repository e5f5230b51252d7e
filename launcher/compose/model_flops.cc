#include <palimpsest/launcher/compose/model_flops.h>

namespace palimpsest {

double model_flops(const Job& job) {
  double flops = 0;
  for (int block = 0; block <= job.model().terminal(); ++block) {
    const BlockCost& cost = job.model().blocks[static_cast<size_t>(block)];
    flops += cost.forward_flops + (job.differentiable(block) ? cost.backward_flops : 0);
  }
  return flops;
}

} // namespace palimpsest
