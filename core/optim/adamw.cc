#include <palimpsest/core/optim/adamw.h>

#include <palimpsest/core/kernels/optimizer_math.h>
#include <palimpsest/core/optim/shard_update.h>

namespace palimpsest {

void AdamW::step(ParamShard& shard, const UpdateScalars& scalars) const {
  for_each_group(
      shard,
      moment_count(),
      scalars.seed,
      [&](const GroupRange& group, const UpdateBuffers& buffers) {
        kernels::adamw_update(
            buffers.weights,
            buffers.gradient,
            buffers.moments[0],
            buffers.moments[1],
            {.learning_rate = scalars.learning_rate * group.learning_rate_factor,
             .beta1 = beta1_,
             .beta2 = beta2_,
             .eps = eps_,
             .weight_decay = group.weight_decay,
             .step = scalars.step,
             .gradient_scale = scalars.gradient_factor,
             .rounding = buffers.rounding},
            buffers.copy);
      });
}

} // namespace palimpsest
