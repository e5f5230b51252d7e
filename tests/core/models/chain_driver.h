#pragma once

// Runs a chain without the engine: all forwards, then all backwards, as plainly as it can be said.
//
//   ChainDriver driver(build_decoder(config));
//   load_weights(folder, driver.chain(), driver.source());
//   StepResult step = driver.run({batch}, {.tape = TapeMode::kLean});
//   at::Tensor gradient = driver.gradient("model.norm.weight");

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/models/weights.h>

#include <ATen/core/Tensor.h>

#include <functional>
#include <map>
#include <string>
#include <vector>

namespace palimpsest {

struct DriverOptions {
  TapeMode tape = TapeMode::kFull;
  bool recompute = false; // drop every tape and run each block again before its backward
  bool split = false; // kInput of all blocks, then kWeight of all
  bool stash = false; // every tensor of a tape is replaced by a byte copy
  bool regather = false; // parameters are released after the forward and bound anew, elsewhere
  bool training = true;
  uint64_t seed = 7;
  uint64_t step = 3;
};

struct StepResult {
  double loss_sum = 0;
  Tensors terminal_inputs; // by micro-batch: what the terminal block read
};

class ChainDriver {
 public:
  explicit ChainDriver(Chain chain);

  Chain& chain() {
    return chain_;
  }
  UnitSource source();

  /// Zeroes the gradients, then runs the micro-batches; the loss scale is 1 / all their targets.
  StepResult run(const StepBatch& batches, const DriverOptions& options = {});
  /// Loss sum and terminal inputs without tapes.
  StepResult evaluate(const StepBatch& batches);

  at::Tensor parameter(const std::string& name);
  at::Tensor gradient(const std::string& name);
  std::vector<std::string> parameter_names() const;
  /// All units' gradients, in order.
  Tensors gradients() const;

 private:
  struct MicroBatchState;
  void forward_block(size_t number, MicroBatchState& state, const ForwardRequest& request);
  Tensors reads(const std::vector<ValueRef>& refs, const MicroBatchState& state) const;
  void run_micro_batch(
      const MicroBatch& batch,
      int number,
      double loss_scale,
      const DriverOptions& options,
      StepResult& result);
  void backward_block(size_t number, MicroBatchState& state, const DriverOptions& options);
  Tensors gradients_of(const ChainBlock& entry) const;
  void rebind_parameters();
  ForwardRequest request_for(size_t number, const DriverOptions& options) const;

  Chain chain_;
};

/// Labels shifted by one, kIgnoredLabel at the end: what the data layer hands out.
MicroBatch token_batch(
    const at::Tensor& input_ids,
    const at::Tensor& unshifted_labels,
    int64_t first_row = 0);

/// Rows [begin, begin + count) of a micro-batch.
MicroBatch rows_of(const MicroBatch& batch, int64_t begin, int64_t count);

/// All sequences of a micro-batch packed into one row, with three tokens of padding behind them.
MicroBatch in_one_row(const MicroBatch& apart);

/// The largest difference relative to the largest value: max |a - b| / max |b|.
double relative_difference(const at::Tensor& a, const at::Tensor& b);

/// Same shape, dtype and bits (but for the sign of zeros).
bool bitwise_equal(const Tensors& a, const Tensors& b);

/// tests/data/models/<name>.
std::string model_folder(const std::string& name);

/// A tensor of a safetensors file.
at::Tensor read_tensor(const std::string& file, const std::string& name);

} // namespace palimpsest
