#include <palimpsest/launcher/compose/utilization.h>

#include <palimpsest/launcher/compose/hardware.h>
#include <palimpsest/launcher/compose/model_flops.h>

#include <numeric>
#include <vector>

namespace palimpsest {
namespace {

int64_t rows_of_step(Run& run, int64_t step) {
  const std::vector<int64_t> sizes = run.batches().micro_batch_sizes(step);
  return std::accumulate(sizes.begin(), sizes.end(), int64_t{0});
}

/// Operations per row of a micro-batch.
double row_flops(Run& run) {
  return model_flops(run.full_plan().job) /
      static_cast<double>(run.batches().micro_batch_sizes(0).front());
}

} // namespace

Utilization model_utilization(Run& run) {
  const RunConfig& config = run.config();
  if (!config.logging().has_hardware()) {
    return unknown_utilization;
  }
  const Hardware hardware = load_hardware(config.logging().hardware(), "logging.hardware");
  const bool fp32 = config.precision().compute() == "fp32"; // devices have one peak for both halves
  const double peak = peak_flops(hardware, fp32 ? at::kFloat : at::kBFloat16);
  return [&run, peak, per_row = row_flops(run)](const StepRecord& record) {
    const auto rows = static_cast<double>(rows_of_step(run, record.step - 1));
    return std::optional(rows * per_row / (record.step_time_s * peak));
  };
}

} // namespace palimpsest
