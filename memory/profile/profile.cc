#include <palimpsest/memory/profile/profile.h>

#include <palimpsest/core/base/error.h>

#include <fmt/ranges.h>

#include <ATen/ops/ones_like.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

int64_t storage_bytes(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<int64_t>(tensor.storage().nbytes()) : 0;
}

/// Bytes of distinct storages that are not one of `elsewhere`.
int64_t owned_bytes(Tape& tape, TensorSpan elsewhere) {
  std::set<const void*> seen;
  for (const at::Tensor& tensor : elsewhere) {
    seen.insert(tensor.storage().unsafeGetStorageImpl());
  }
  int64_t bytes = 0;
  for (const at::Tensor* tensor : tape.tensors()) {
    if (tensor->defined() && seen.insert(tensor->storage().unsafeGetStorageImpl()).second) {
      bytes += storage_bytes(*tensor);
    }
  }
  return bytes;
}

/// Gives units that are not bound zeros to compute with, and gradient buffers; takes them back.
class BoundUnits {
 public:
  BoundUnits(Chain& chain, const std::vector<int>& units, at::ScalarType gradients) {
    for (const int index : units) {
      ParamUnit& unit = *chain.units[static_cast<size_t>(index)];
      if (!unit.data().defined()) {
        unit.bind_data(at::zeros({unit.held(unit.numel())}, unit.held_dtype()));
        data_.push_back(&unit);
      }
      if (unit.trainable() && !unit.grad().defined()) {
        unit.bind_grad(at::zeros({unit.numel()}, gradients));
        grads_.push_back(&unit);
      }
    }
  }
  BoundUnits(const BoundUnits&) = delete;
  BoundUnits& operator=(const BoundUnits&) = delete;
  ~BoundUnits() {
    for (ParamUnit* unit : data_) {
      unit->bind_data({});
    }
    for (ParamUnit* unit : grads_) {
      unit->bind_grad({});
    }
  }

 private:
  std::vector<ParamUnit*> data_;
  std::vector<ParamUnit*> grads_;
};

/// One measured call.
struct Measured {
  double seconds = 0;
  int64_t transient = 0; // highest total during the call above what was live before it
};

/// How often a block is measured: once to warm up, then as often as asked, or until the time is up.
/// Where it is up at once, what was to warm up has to do.
class Repeats {
 public:
  explicit Repeats(const ProfileOptions& options)
      : options_(options), begin_(std::chrono::steady_clock::now()) {}

  /// Whether one more is due.
  bool more() {
    return (done_ == 0 || !late()) && done_++ <= options_.repeats;
  }

  /// Whether the time is up.
  bool late() const {
    const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begin_;
    return taken.count() > options_.seconds_per_block;
  }

 private:
  const ProfileOptions& options_;
  std::chrono::steady_clock::time_point begin_;
  int done_ = 0;
};

class Profiler {
 public:
  Profiler(Chain& chain, const MicroBatch& sample, MemoryContext& memory, ProfileOptions options)
      : chain_(chain), memory_(memory), options_(options) {
    context_.batch = &sample;
    values_[{kLoader, 0}] = sample.inputs;
  }

  ModelCost run() {
    ModelCost model;
    for (const auto& unit : chain_.units) {
      model.units.push_back(unit_cost(*unit));
    }
    const MicroBatch& sample = *context_.batch;
    model.batch_bytes = storage_bytes(sample.inputs) + storage_bytes(sample.labels) +
        storage_bytes(sample.positions);
    for (size_t index = 0; index < chain_.blocks.size(); ++index) {
      begin_block();
      model.blocks.push_back(block_cost(static_cast<int>(index)));
    }
    begin_block();
    model.blocks.push_back(terminal_cost());
    for (const ChainLayer& layer : chain_.layers) {
      model.layers.push_back({layer.name, layer.blocks});
    }
    model.validate();
    return model;
  }

 private:
  UnitCost unit_cost(const ParamUnit& unit) const {
    UnitCost cost{
        .name = unit.name(), .elements = unit.numel(), .parameter_bytes = unit.held_bytes()};
    cost.frozen = !unit.trainable();
    if (unit.trainable()) {
      const StatePrecision& precision = options_.precision;
      cost.gradient_bytes = unit.numel() * precision.gradient_bytes();
      cost.state_bytes = unit.numel() * precision.state_bytes(unit.dtype(), options_.moment_count);
    }
    return cost;
  }

  void begin_block() const {
    if (options_.before_block) {
      options_.before_block();
    }
  }

  Measured measure(const std::function<void()>& call) {
    if (options_.before_call) {
      options_.before_call();
    }
    const int64_t before = memory_.total().live;
    memory_.begin_interval();
    const auto begin = std::chrono::steady_clock::now();
    call();
    const auto seconds = std::chrono::steady_clock::now() - begin;
    return {std::chrono::duration<double>(seconds).count(), memory_.interval_peak() - before};
  }

  Tensors operands(const std::vector<ValueRef>& reads) const {
    Tensors inputs;
    for (const ValueRef& read : reads) {
      inputs.push_back(values_.at({read.producer, read.index}));
    }
    return inputs;
  }

  /// What blocks that cost the same have in common: their kind, their inputs' sizes, and which of
  /// their parameters are trained.
  std::string key(const ChainBlock& entry, TensorSpan inputs) const {
    std::string text = entry.block->kind();
    for (const at::Tensor& input : inputs) {
      text += fmt::format(" {}", fmt::join(input.sizes(), "x"));
    }
    for (const int index : entry.units) {
      const ParamUnit& unit = *chain_.units[static_cast<size_t>(index)];
      text += unit.codec() != nullptr ? fmt::format("; {}", unit.codec()->name())
          : unit.trainable()          ? "; trained"
                                      : "; frozen";
      for (const Parameter& parameter : unit.parameters()) {
        std::string name = parameter.name;
        std::erase_if(name, [](char c) { return c >= '0' && c <= '9'; }); // of its layer
        text += " " + name;
      }
    }
    return text;
  }

  BlockCost block_cost(int index) {
    const ChainBlock& entry = chain_.blocks[static_cast<size_t>(index)];
    const Tensors inputs = operands(entry.reads);
    auto [found, fresh] = known_.try_emplace(key(entry, inputs));
    if (fresh) {
      const BoundUnits bound(chain_, entry.units, options_.precision.gradients);
      found->second = measure_block(entry, inputs);
    }
    BlockCost cost = found->second.cost;
    cost.name = entry.name;
    cost.reads = entry.reads;
    cost.saves = entry.saves;
    cost.units = entry.units;
    cost.backward_reads_units = entry.backward_reads_units;
    for (int value = 0; value < entry.values; ++value) {
      values_[{index, value}] = found->second.values[static_cast<size_t>(value)];
    }
    return cost;
  }

  struct Known {
    BlockCost cost;
    Tensors values; // stand for those of every block of this kind
  };

  /// What one repeat took.
  struct Times {
    double forward = 0;
    double unread_lean = 0;
    double unread_full = 0;
    double lean_backward = 0;
    double full_backward = 0;
    double input = 0;
    double weight = 0;
  };

  /// Bytes are those of the last repeat.
  Known measure_block(const ChainBlock& entry, const Tensors& inputs) {
    Known known;
    BlockCost& cost = known.cost;
    cost.forward_flops = entry.block->forward_flops(inputs);
    cost.value_flops = entry.block->value_flops(inputs);
    cost.backward_flops = entry.block->backward_flops(inputs);
    std::vector<Times> times;
    for (Repeats repeats(options_); repeats.more();) {
      times.push_back(measure_once(entry, inputs, known));
      if (!repeats.late()) {
        times.back().unread_lean = measure_unread(entry, inputs, TapeMode::kLean);
        times.back().unread_full = measure_unread(entry, inputs, TapeMode::kFull);
      } else { // what the products that are left out take of all
        const double spared = cost.forward_flops > 0 ? cost.value_flops / cost.forward_flops : 0;
        times.back().unread_lean = times.back().unread_full = (1 - spared) * times.back().forward;
      }
    }
    cost.forward_seconds = median(times, &Times::forward);
    const auto spared = [&](double Times::*unread) {
      return std::max(0.0, cost.forward_seconds - median(times, unread));
    };
    cost.value_seconds = {.lean = spared(&Times::unread_lean), .full = spared(&Times::unread_full)};
    cost.lean_seconds =
        std::max(0.0, median(times, &Times::lean_backward) - median(times, &Times::full_backward));
    cost.input_seconds = median(times, &Times::input);
    cost.weight_seconds = median(times, &Times::weight);
    return known;
  }

  Times measure_once(const ChainBlock& entry, const Tensors& inputs, Known& known) {
    Times times;
    times.forward = measure_forward(entry, inputs, TapeMode::kNone, known).seconds;
    entry.block->commit(false);
    times.lean_backward = measure_both(entry, inputs, TapeMode::kLean, known);
    times.full_backward = measure_both(entry, inputs, TapeMode::kFull, known);
    measure_split(entry, inputs, known, times);
    return times;
  }

  /// The first repeat compiles kernels: it counts only where it is all there is.
  template <typename T>
  static double median(std::vector<T> times, double T::*what) {
    if (times.size() > 1) {
      times.erase(times.begin());
    }
    const auto middle = times.begin() + static_cast<std::ptrdiff_t>(times.size() / 2);
    std::ranges::nth_element(times, middle, {}, what);
    return (*middle).*what;
  }

  static std::vector<int> all_values(const ChainBlock& entry) {
    std::vector<int> yields;
    for (int value = 0; value < entry.values; ++value) {
      yields.push_back(value);
    }
    return yields;
  }

  ForwardResult forward(const ChainBlock& entry, const Tensors& inputs, TapeMode tape) {
    return entry.block->forward(inputs, {tape, all_values(entry), {}}, context_);
  }

  struct Forward {
    double seconds = 0;
    std::unique_ptr<Tape> tape;
  };

  Forward measure_forward(
      const ChainBlock& entry,
      const Tensors& inputs,
      TapeMode tape,
      Known& known) {
    ForwardResult result;
    const Measured measured = measure([&] { result = forward(entry, inputs, tape); });
    known.cost.value_bytes.clear();
    int64_t kept = 0;
    for (const at::Tensor& value : result.values) {
      known.cost.value_bytes.push_back(storage_bytes(value));
      kept += storage_bytes(value);
    }
    const int64_t owned = result.tape != nullptr ? owned_bytes(*result.tape, inputs) : 0;
    const int64_t workspace = std::max<int64_t>(0, measured.transient - kept - owned);
    switch (tape) {
      case TapeMode::kNone:
        known.cost.forward_workspace.none = workspace;
        break;
      case TapeMode::kLean:
        known.cost.forward_workspace.lean = workspace;
        known.cost.lean_bytes = owned;
        break;
      case TapeMode::kFull:
        known.cost.forward_workspace.full = workspace;
        known.cost.full_bytes = owned;
        break;
    }
    known.values = std::move(result.values);
    return {measured.seconds, std::move(result.tape)};
  }

  /// A forward and the backward of its tape; what the latter took.
  double measure_both(const ChainBlock& entry, const Tensors& inputs, TapeMode tape, Known& known) {
    const Forward before = measure_forward(entry, inputs, tape, known);
    const Tensors grads = ones(known.values);
    Tensors grad_inputs;
    const Measured measured = measure(
        [&] { grad_inputs = before.tape->backward(inputs, grads, BackwardPart::kBoth, context_); });
    int64_t kept = 0;
    for (const at::Tensor& grad : grad_inputs) {
      kept += storage_bytes(grad);
    }
    const int64_t workspace = std::max<int64_t>(0, measured.transient - kept);
    if (tape == TapeMode::kLean) {
      known.cost.backward_workspace.lean = workspace;
    } else {
      known.cost.backward_workspace.full = workspace;
    }
    entry.block->commit(false);
    return measured.seconds;
  }

  void measure_split(const ChainBlock& entry, const Tensors& inputs, Known& known, Times& times) {
    ForwardResult result = forward(entry, inputs, TapeMode::kFull);
    const Tensors grads = ones(result.values);
    result.values.clear();
    Tensors grad_inputs;
    const Measured input = measure([&] {
      grad_inputs = result.tape->backward(inputs, grads, BackwardPart::kInput, context_);
    });
    times.input = input.seconds;
    known.cost.weight_jobs_bytes = owned_bytes(*result.tape, {});
    grad_inputs.clear();
    const Measured weight =
        measure([&] { result.tape->backward({}, {}, BackwardPart::kWeight, context_); });
    times.weight = weight.seconds;
    known.cost.weight_workspace = std::max<int64_t>(0, weight.transient);
    entry.block->commit(false);
  }

  /// A forward that leaves a tape and no value, as reruns do where nobody reads the value.
  double measure_unread(const ChainBlock& entry, const Tensors& inputs, TapeMode tape) {
    ForwardResult result;
    const Measured measured = measure(
        [&] { result = entry.block->forward(inputs, {.tape = tape, .yields = {}}, context_); });
    entry.block->commit(false);
    return measured.seconds;
  }

  static Tensors ones(const Tensors& values) {
    Tensors grads;
    for (const at::Tensor& value : values) {
      grads.push_back(at::ones_like(value));
    }
    return grads;
  }

  /// Whether the terminal block multiplies with matrices and trains none of them: then its backward
  /// makes the inputs' gradients only.
  bool has_frozen_products() const {
    bool frozen = false;
    for (const int index : chain_.terminal_units) {
      const ParamUnit& unit = *chain_.units[static_cast<size_t>(index)];
      if (std::ranges::any_of(
              unit.parameters(), [](const Parameter& p) { return p.shape.size() > 1; })) {
        if (unit.trainable()) {
          return false;
        }
        frozen = true;
      }
    }
    return frozen;
  }

  BlockCost terminal_cost() {
    const Tensors inputs = operands(chain_.terminal_reads);
    BlockCost cost{.name = chain_.terminal->kind(), .reads = chain_.terminal_reads};
    cost.units = chain_.terminal_units;
    const BoundUnits bound(chain_, cost.units, options_.precision.gradients);
    std::vector<Measured> times;
    for (Repeats repeats(options_); repeats.more();) {
      const Measured evaluated =
          measure([&] { chain_.terminal->forward(inputs, false, context_); });
      LossResult result;
      const Measured measured =
          measure([&] { result = chain_.terminal->forward(inputs, true, context_); });
      int64_t kept = 0;
      for (const at::Tensor& grad : result.grad_inputs) {
        kept += storage_bytes(grad);
      }
      const int64_t workspace = std::max<int64_t>(0, measured.transient - kept);
      cost.forward_workspace = {evaluated.transient, workspace, workspace};
      times.push_back(measured);
    }
    cost.forward_seconds = median(times, &Measured::seconds);
    cost.forward_flops = chain_.terminal->forward_flops(inputs);
    cost.backward_flops = (has_frozen_products() ? 1 : 2) * cost.forward_flops;
    return cost;
  }

  Chain& chain_;
  MemoryContext& memory_;
  ProfileOptions options_;
  BlockContext context_;
  std::map<std::pair<int, int>, at::Tensor> values_;
  std::map<std::string, Known> known_;
};

} // namespace

ModelCost profile(
    Chain& chain,
    const MicroBatch& sample,
    MemoryContext& memory,
    const ProfileOptions& options) {
  const ScopedCategory category(memory, Category::kWorkspace);
  return Profiler(chain, sample, memory, options).run();
}

} // namespace palimpsest
