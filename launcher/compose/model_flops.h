#pragma once

// The arithmetic that a model's training needs, as utilisation counts it.
//
//   const double per_step = micro_batches * model_flops(job);

#include <palimpsest/core/plan/job.h>

namespace palimpsest {

/// Operations of one micro-batch: each block's forward once, and the backward of those that have
/// one, which are all from the first trained parameter on. Nothing that is recomputed.
double model_flops(const Job& job);

} // namespace palimpsest
