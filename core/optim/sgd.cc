#include <palimpsest/core/optim/sgd.h>

#include <palimpsest/core/kernels/optimizer_math.h>
#include <palimpsest/core/optim/shard_update.h>

namespace palimpsest {

void Sgd::step(ParamShard& shard, const UpdateScalars& scalars) const {
  for_each_group(
      shard,
      moment_count(),
      scalars.seed,
      [&](const GroupRange& group, const UpdateBuffers& buffers) {
        kernels::sgd_momentum_update(
            buffers.weights,
            buffers.gradient,
            buffers.moments.empty() ? at::Tensor() : buffers.moments[0],
            {.learning_rate = scalars.learning_rate * group.learning_rate_factor,
             .momentum = momentum_,
             .weight_decay = group.weight_decay,
             .first = scalars.step == 1,
             .step = scalars.step,
             .gradient_scale = scalars.gradient_factor,
             .rounding = buffers.rounding},
            buffers.copy);
      });
}

} // namespace palimpsest
