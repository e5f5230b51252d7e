#pragma once

// Batch arithmetic: global batch = micro-batch x accumulation x data-parallel size. Whichever is
// missing is derived, and what does not divide is refused with all numbers.
//
//   derive_batch(config, 2);   // global 16, micro 2 -> {16, 2, 4, 2}; global 16 alone -> {16, 8, 1, 2}

#include <palimpsest/core/config/run_config.pb.h>

#include <cstdint>

namespace palimpsest {

/// Samples per optimizer step (`global`), per forward (`micro`), micro-batches per rank and step
/// (`accumulation`), and the ranks that read different data (`data_parallel`).
struct BatchSizes {
  int64_t global = 0;
  int64_t micro = 0;
  int64_t accumulation = 0;
  int64_t data_parallel = 0;
};

/// The tokens of a sample where data.sequence_length is not given: what the model takes, at most 512.
int64_t usual_sequence_length(int64_t max_positions);

/// `world` ranks over `stages` pipeline stages. Throws UserError where they do not divide.
int64_t derive_data_parallel(int64_t world, int64_t stages);

/// The batch of a run on `world` ranks (at least 1). An automatic micro-batch is the largest that
/// divides, which makes the accumulation 1; with no batch key at all it is 8. Throws UserError,
/// with all numbers, where no whole batch fits.
BatchSizes derive_batch(const RunConfig& config, int64_t world);

} // namespace palimpsest
