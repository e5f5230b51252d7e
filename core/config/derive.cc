#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/derive.h>

#include <algorithm>

namespace palimpsest {
namespace {

constexpr int64_t kUsualMicroBatch = 8;

/// a x b x c; batches beyond int64 are refused rather than wrapped.
int64_t product(int64_t a, int64_t b, int64_t c) {
  int64_t result = 0;
  if (__builtin_mul_overflow(a, b, &result) || __builtin_mul_overflow(result, c, &result)) {
    throw UserError("training: a global batch of {} x {} x {} samples is too large", a, b, c);
  }
  return result;
}

/// global / (factor x data_parallel) for the one key that is missing.
int64_t quotient(
    int64_t global,
    int64_t factor,
    const char* factor_name,
    int64_t data_parallel,
    const char* missing) {
  const int64_t divisor = product(factor, data_parallel, 1);
  if (global % divisor != 0) {
    throw UserError(
        "training.global_batch_size: {} is no multiple of {} ({}) x {} (data-parallel size) = {}, "
        "so {} would be {:.4g}; change one of them",
        global,
        factor,
        factor_name,
        data_parallel,
        divisor,
        missing,
        static_cast<double>(global) / static_cast<double>(divisor));
  }
  return global / divisor;
}

} // namespace

int64_t usual_sequence_length(int64_t max_positions) {
  constexpr int64_t kUsual = 512;
  return std::min(kUsual, max_positions);
}

int64_t derive_data_parallel(int64_t world, int64_t stages) {
  if (world % stages != 0) {
    throw UserError(
        "pipeline.stages: {} ranks cannot be divided among {} stages; change one of them",
        world,
        stages);
  }
  return world / stages;
}

BatchSizes derive_batch(const RunConfig& config, int64_t world) {
  const RunConfig::Training& training = config.training();
  BatchSizes batch;
  batch.data_parallel = derive_data_parallel(world, config.pipeline().stages());
  const bool has_global = training.has_global_batch_size();
  const bool has_micro = training.has_micro_batch_size();
  const bool has_accumulation = training.has_gradient_accumulation_steps();

  if (has_global && has_micro && !has_accumulation) {
    batch.micro = training.micro_batch_size();
    batch.accumulation = quotient(
        training.global_batch_size(),
        batch.micro,
        "micro_batch_size",
        batch.data_parallel,
        "gradient_accumulation_steps");
  } else {
    batch.accumulation = has_accumulation ? training.gradient_accumulation_steps() : 1;
    batch.micro = has_micro ? training.micro_batch_size()
        : has_global        ? quotient(
                           training.global_batch_size(),
                           batch.accumulation,
                           "gradient_accumulation_steps",
                           batch.data_parallel,
                           "micro_batch_size")
                     : kUsualMicroBatch;
  }
  batch.global = product(batch.micro, batch.accumulation, batch.data_parallel);
  if (has_global && batch.global != training.global_batch_size()) {
    throw UserError(
        "training.global_batch_size: {} is not {} (micro_batch_size) x {} "
        "(gradient_accumulation_steps) x {} "
        "(data-parallel size) = {}; leave one of them out",
        training.global_batch_size(),
        batch.micro,
        batch.accumulation,
        batch.data_parallel,
        batch.global);
  }
  return batch;
}

} // namespace palimpsest
