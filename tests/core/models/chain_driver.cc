#include <palimpsest/tests/core/models/chain_driver.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/safetensors.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace palimpsest {

struct ChainDriver::MicroBatchState {
  const MicroBatch* batch = nullptr;
  BlockContext context;
  std::map<std::pair<int, int>, at::Tensor> values;
  std::map<std::pair<int, int>, at::Tensor> gradients;
  std::vector<std::unique_ptr<Tape>> tapes;
};

namespace {

std::pair<int, int> key(const ValueRef& ref) {
  return {ref.producer, ref.index};
}

/// What a fetch does: the same bytes, sizes, strides and offset in a storage of its own.
at::Tensor byte_copy(const at::Tensor& tensor) {
  const auto storage_elements =
      static_cast<int64_t>(tensor.storage().nbytes() / tensor.element_size());
  at::Tensor storage = at::empty({storage_elements}, tensor.options());
  std::memcpy(storage.mutable_data_ptr(), tensor.storage().data(), tensor.storage().nbytes());
  return storage.as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
}

void stash_and_fetch(Tape& tape) {
  for (at::Tensor* tensor : tape.tensors()) {
    *tensor = byte_copy(*tensor);
  }
}

} // namespace

ChainDriver::ChainDriver(Chain chain) : chain_(std::move(chain)) {
  for (const auto& unit : chain_.units) {
    const int64_t padded = unit->numel() + 5; // as if padded to a group
    const int64_t held = unit->held(unit->numel()) + 5;
    unit->bind_data(at::zeros({held}, at::TensorOptions().dtype(unit->held_dtype())));
    if (unit->trainable()) {
      unit->bind_grad(at::zeros({padded}));
    }
  }
}

UnitSource ChainDriver::source() {
  return [this](int unit) {
    return UnitValues{.values = chain_.units[static_cast<size_t>(unit)]->data(), .begin = 0};
  };
}

ForwardRequest ChainDriver::request_for(size_t number, const DriverOptions& options) const {
  ForwardRequest request{.tape = options.tape, .yields = {}, .graded_inputs = {}};
  for (int index = 0; index < chain_.blocks[number].values; ++index) {
    request.yields.push_back(index);
  }
  for (const ValueRef& read : chain_.blocks[number].reads) {
    request.graded_inputs.push_back(read.producer != kLoader);
  }
  return request;
}

Tensors ChainDriver::reads(const std::vector<ValueRef>& refs, const MicroBatchState& state) const {
  Tensors result;
  for (const ValueRef& ref : refs) {
    result.push_back(ref.producer == kLoader ? state.batch->inputs : state.values.at(key(ref)));
  }
  return result;
}

void ChainDriver::forward_block(
    size_t number,
    MicroBatchState& state,
    const ForwardRequest& request) {
  const ChainBlock& entry = chain_.blocks[number];
  ForwardResult result = entry.block->forward(reads(entry.reads, state), request, state.context);
  check(result.values.size() == request.yields.size(), "another number of values");
  for (size_t index = 0; index < request.yields.size(); ++index) {
    state.values[{static_cast<int>(number), request.yields[index]}] = result.values[index];
  }
  check((result.tape == nullptr) == (request.tape == TapeMode::kNone), "a tape too many or few");
  state.tapes[number] = std::move(result.tape);
}

Tensors ChainDriver::gradients_of(const ChainBlock& entry) const {
  Tensors result;
  for (const int number : entry.units) {
    const ParamUnit& unit = *chain_.units[static_cast<size_t>(number)];
    if (unit.trainable()) {
      result.push_back(unit.grad().clone());
    }
  }
  return result;
}

void ChainDriver::backward_block(
    size_t number,
    MicroBatchState& state,
    const DriverOptions& options) {
  const ChainBlock& entry = chain_.blocks[number];
  if (options.recompute) { // nothing is read from it again
    ForwardRequest request = request_for(number, options);
    request.yields.clear();
    forward_block(number, state, request);
  }
  Tape& tape = *state.tapes[number];
  if (options.stash) {
    stash_and_fetch(tape);
  }
  Tensors inputs = reads(entry.reads, state);
  for (size_t index = 0; index < inputs.size(); ++index) {
    if (std::ranges::find(entry.saves, entry.reads[index]) == entry.saves.end()) {
      inputs[index].reset();
    }
  }
  Tensors gradients;
  for (int index = 0; index < entry.values; ++index) {
    gradients.push_back(state.gradients[{static_cast<int>(number), index}]);
  }
  const Tensors before = gradients_of(entry);
  const Tensors grads = tape.backward(
      inputs, gradients, options.split ? BackwardPart::kInput : BackwardPart::kBoth, state.context);
  check(
      !options.split || bitwise_equal(gradients_of(entry), before),
      "the input part adds a weight gradient");
  for (size_t index = 0; index < grads.size(); ++index) {
    at::Tensor& sum = state.gradients[key(entry.reads[index])];
    sum = sum.defined() && grads[index].defined() ? sum + grads[index] : grads[index];
  }
}

void ChainDriver::run_micro_batch(
    const MicroBatch& batch,
    int number,
    double loss_scale,
    const DriverOptions& options,
    StepResult& result) {
  MicroBatchState state;
  state.batch = &batch;
  state.context = {
      .batch = &batch,
      .seed = options.seed,
      .step = options.step,
      .micro_batch = number,
      .training = options.training,
      .loss_scale = loss_scale};
  state.tapes.resize(chain_.blocks.size());
  for (size_t block = 0; block < chain_.blocks.size(); ++block) {
    ForwardRequest request = request_for(block, options);
    request.tape = options.recompute ? TapeMode::kNone : options.tape;
    forward_block(block, state, request);
  }
  const Tensors inputs = reads(chain_.terminal_reads, state);
  const bool gradient = options.tape != TapeMode::kNone;
  const LossResult loss = chain_.terminal->forward(inputs, gradient, state.context);
  result.loss_sum += loss.loss_sum;
  result.terminal_inputs.push_back(inputs[0]);
  if (!gradient) {
    return;
  }
  for (size_t index = 0; index < loss.grad_inputs.size(); ++index) {
    state.gradients[key(chain_.terminal_reads[index])] = loss.grad_inputs[index];
  }
  if (options.regather) {
    rebind_parameters();
  }
  for (size_t block = chain_.blocks.size(); block-- > 0;) {
    backward_block(block, state, options);
  }
  if (options.split) {
    for (size_t block = chain_.blocks.size(); block-- > 0;) {
      if (options.stash) {
        stash_and_fetch(*state.tapes[block]);
      }
      const Tensors nothing =
          state.tapes[block]->backward({}, {}, BackwardPart::kWeight, state.context);
      check(nothing.empty(), "the weight part returns gradients");
    }
  }
}

void ChainDriver::rebind_parameters() {
  for (const auto& unit : chain_.units) {
    const at::Tensor old = unit->data();
    unit->bind_data(old.clone());
    const bool wide = old.scalar_type() == at::kFloat || old.scalar_type() == at::kBFloat16;
    old.fill_(wide ? 1e30 : 99); // whoever still reads it will show
  }
}

StepResult ChainDriver::run(const StepBatch& batches, const DriverOptions& options) {
  int64_t targets = 0;
  for (const MicroBatch& batch : batches) {
    targets += batch.target_count;
  }
  for (const auto& unit : chain_.units) {
    if (unit->trainable()) {
      unit->grad().zero_();
    }
  }
  StepResult result;
  for (size_t number = 0; number < batches.size(); ++number) {
    run_micro_batch(
        batches[number],
        static_cast<int>(number),
        1.0 / static_cast<double>(std::max<int64_t>(targets, 1)),
        options,
        result);
  }
  return result;
}

StepResult ChainDriver::evaluate(const StepBatch& batches) {
  StepResult result;
  for (const MicroBatch& batch : batches) {
    run_micro_batch(batch, 0, 1, {.tape = TapeMode::kNone, .training = false}, result);
  }
  return result;
}

at::Tensor ChainDriver::parameter(const std::string& name) {
  for (const auto& unit : chain_.units) {
    for (size_t index = 0; index < unit->parameters().size(); ++index) {
      if (unit->parameters()[index].name == name) {
        return unit->view(index);
      }
    }
  }
  throw InternalError("no parameter " + name);
}

at::Tensor ChainDriver::gradient(const std::string& name) {
  for (const auto& unit : chain_.units) {
    for (size_t index = 0; index < unit->parameters().size(); ++index) {
      if (unit->parameters()[index].name == name) {
        return unit->grad_view(index);
      }
    }
  }
  throw InternalError("no parameter " + name);
}

std::vector<std::string> ChainDriver::parameter_names() const {
  std::vector<std::string> names;
  for (const auto& unit : chain_.units) {
    for (const Parameter& parameter : unit->parameters()) {
      names.push_back(parameter.name);
    }
  }
  return names;
}

Tensors ChainDriver::gradients() const {
  Tensors result;
  for (const auto& unit : chain_.units) {
    if (unit->trainable()) {
      result.push_back(unit->grad().clone());
    }
  }
  return result;
}

MicroBatch token_batch(
    const at::Tensor& input_ids,
    const at::Tensor& unshifted_labels,
    int64_t first_row) {
  const int64_t rows = input_ids.size(0);
  const at::Tensor none = at::full({rows, 1}, kIgnoredLabel, unshifted_labels.options());
  MicroBatch batch;
  batch.inputs = input_ids;
  batch.labels = at::cat({unshifted_labels.narrow(1, 1, unshifted_labels.size(1) - 1), none}, 1);
  batch.rows = at::arange(first_row, first_row + rows, at::TensorOptions().dtype(at::kLong));
  batch.target_count = batch.labels.ne(kIgnoredLabel).sum().item<int64_t>();
  batch.token_count = input_ids.numel();
  return batch;
}

MicroBatch rows_of(const MicroBatch& batch, int64_t begin, int64_t count) {
  MicroBatch part;
  part.inputs = batch.inputs.narrow(0, begin, count);
  part.labels = batch.labels.narrow(0, begin, count);
  part.rows = batch.rows.narrow(0, begin, count);
  part.target_count = batch.labels.scalar_type() == at::kLong
      ? part.labels.ne(kIgnoredLabel).sum().item<int64_t>()
      : part.labels.numel();
  part.token_count = part.inputs.numel();
  return part;
}

MicroBatch in_one_row(const MicroBatch& apart) {
  constexpr int64_t kPadding = 3;
  const at::Tensor padding = at::zeros({1, kPadding}, at::kLong);
  const at::Tensor places = at::arange(apart.inputs.size(1), at::kLong).unsqueeze(0);
  MicroBatch packed = apart;
  packed.inputs = at::cat({apart.inputs.reshape({1, -1}), padding}, 1);
  packed.labels = at::cat({apart.labels.reshape({1, -1}), padding.add(kIgnoredLabel)}, 1);
  packed.positions = at::cat(
      {places.repeat({1, apart.inputs.size(0)}), at::arange(kPadding, at::kLong).unsqueeze(0)}, 1);
  packed.rows = apart.rows.narrow(0, 0, 1);
  return packed;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor wide = b.to(at::kDouble);
  const double largest = wide.abs().max().item<double>();
  const double difference = (a.to(at::kDouble) - wide).abs().max().item<double>();
  return difference == 0 ? 0 : difference / largest;
}

bool bitwise_equal(const Tensors& a, const Tensors& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& left, const at::Tensor& right) {
    return left.scalar_type() == right.scalar_type() && left.equal(right);
  });
}

std::string model_folder(const std::string& name) {
  return std::string(PALIMPSEST_TEST_DATA) + "/models/" + name;
}

at::Tensor read_tensor(const std::string& file, const std::string& name) {
  const SafetensorsFile source(file);
  const StoredTensor& stored = source.at(name);
  const at::ScalarType dtype = stored.dtype == StoredDtype::I64 ? at::kLong
      : stored.dtype == StoredDtype::F32                        ? at::kFloat
                                                                : at::kBFloat16;
  at::Tensor tensor = at::empty(stored.shape, at::TensorOptions().dtype(dtype));
  std::memcpy(tensor.mutable_data_ptr(), source.bytes(stored).data(), tensor.nbytes());
  return tensor;
}

} // namespace palimpsest
