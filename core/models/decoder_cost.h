#pragma once

// What a decoder's blocks cost on a device that is not there: closed formulas for the bytes, FLOPs
// and seconds that memory/profile measures.
//
//   const ModelCost cost = analytic_cost(config, {.samples = 1, .tokens = 4096, .decoder = {.compute = at::kBFloat16}},
//                                        {.flops = 989e12, .bandwidth = 3.35e12, .latency = 5e-6});
//
// No tensor is made, so a model of any size is costed in milliseconds. Bytes of values, tapes and
// queued weight gradients are exactly those of the blocks; so are workspaces, but for the scratch
// that a library of matrix products asks for. Every row counts as one with a target.

#include <palimpsest/core/contracts/precision.h>
#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/plan/cost_model.h>

#include <cstdint>

namespace palimpsest {

/// A micro-batch, and how the model computes on it.
struct DecoderWork {
  int64_t samples = 1;
  int64_t tokens = 0; ///< of each sample
  bool packed = false; ///< several documents share a sample, so that positions come with it
  DecoderOptions decoder = {};
  int moment_count = 2; ///< of each parameter's optimizer
  StatePrecision precision = {};
};

/// A kernel takes max(FLOPs / flops, bytes / bandwidth) + latency: the roofline (Williams et al.
/// 2009), with each operand read and each result written once.
struct DeviceSpeed {
  double flops = 1; ///< per second, of matrix products in the compute type
  double bandwidth = 1; ///< bytes per second of the device's memory
  double latency = 0; ///< seconds, of each kernel
  /// Threads that each hold tiles of attention's scores: a CPU's; 0 where tiles stay on the chip.
  int64_t attention_threads = 0;
};

/// Also gives UPDATE's seconds, for whole units.
ModelCost analytic_cost(
    const DecoderConfig& config,
    const DecoderWork& work,
    const DeviceSpeed& device);

} // namespace palimpsest
