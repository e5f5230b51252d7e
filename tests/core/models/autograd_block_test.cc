// Covers: saved_tensors.cc
#include <palimpsest/tests/core/models/chain_driver.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/dropout.h>
#include <palimpsest/core/models/autograd_block.h>
#include <palimpsest/core/models/squared_error.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/batch_norm.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

bool all_trained(const std::string&) {
  return true;
}

/// A chain whose blocks are added one after the other, each reading the one before.
class ChainOf {
 public:
  void add(AutogradSpec spec, std::vector<int> units) {
    const int previous = chain_.terminal_index() - 1;
    const ValueRef read = previous < 0 ? ValueRef{kLoader, 0} : ValueRef{previous, 0};
    const bool saved = spec.saved_inputs.empty() || spec.saved_inputs[0];
    chain_.blocks.push_back(
        {.block = std::make_unique<AutogradBlock>(std::move(spec)),
         .name = "block",
         .reads = {read},
         .saves = saved ? std::vector<ValueRef>{read} : std::vector<ValueRef>{},
         .values = 1,
         .units = std::move(units)});
  }
  BlockUnits units(
      const std::vector<std::vector<Parameter>>& groups,
      at::ScalarType dtype = at::kFloat) {
    return add_units(chain_, "unit", groups, dtype, all_trained);
  }
  ChainDriver finish() {
    chain_.terminal = std::make_unique<SquaredErrorBlock>();
    chain_.terminal_reads = {{chain_.terminal_index() - 1, 0}};
    return ChainDriver(std::move(chain_));
  }

 private:
  Chain chain_;
};

MicroBatch batch_of(const at::Tensor& inputs, const at::Tensor& targets) {
  return {
      .inputs = inputs,
      .labels = targets,
      .rows = at::arange(inputs.size(0), at::TensorOptions().dtype(at::kLong)),
      .target_count = targets.numel(),
      .token_count = inputs.size(0)};
}

Tensors scaled(const AutogradCall& call) {
  return {call.inputs[0] * call.parameters[0]};
}

TEST(AutogradBlock, AScalarWeightUsedByTwoBlocks) {
  ChainOf blocks; // y = f(f(x)), f(x) = w x
  const BlockUnits made = blocks.units({{{.name = "w", .shape = {}}}});
  for (int use = 0; use < 2; ++use) {
    blocks.add({.kind = "scale", .function = scaled, .parameters = made.refs}, made.units);
  }
  ChainDriver driver = blocks.finish();
  driver.parameter("w").fill_(2);
  // d(y - 3.5)^2 / dy = 1 at y = 4, so the gradient is dy/dw = 2 w x = 4.
  const MicroBatch batch = batch_of(at::ones({1, 1}), at::full({1, 1}, 3.5F));
  for (const DriverOptions& options :
       std::vector<DriverOptions>{{}, {.recompute = true}, {.split = true, .regather = true}}) {
    driver.run({batch}, options);
    EXPECT_EQ(driver.gradient("w").dim(), 0);
    EXPECT_EQ(driver.gradient("w").item<float>(), 4.0F);
  }
}

TEST(AutogradBlock, AnEvaluationBetweenStepsChangesNothing) {
  ChainOf blocks;
  const BlockUnits made = blocks.units({{{.name = "w", .shape = {1, 1}}}});
  blocks.add(
      {.kind = "linear",
       .function = [](const AutogradCall& call) -> Tensors {
         return {at::linear(call.inputs[0], call.parameters[0])};
       },
       .parameters = made.refs},
      made.units);
  ChainDriver driver = blocks.finish();
  driver.parameter("w").fill_(1);
  const MicroBatch batch = batch_of(at::ones({1, 1}), at::full({1, 1}, 0.5F));
  driver.evaluate({batch});
  for (const bool recompute : {false, true}) {
    driver.run({batch}, {.recompute = recompute});
    EXPECT_EQ(driver.gradient("w").item<float>(), 1.0F);
  }
  driver.parameter("w").sub_(driver.gradient("w"), 0.5);
  EXPECT_EQ(driver.evaluate({batch}).terminal_inputs[0].item<float>(), 0.5F);
}

/// Saves views and transposes of a parameter, its input, an output and a tensor seen through two
/// views.
Tensors tangled(const AutogradCall& call) {
  const at::Tensor& w = call.parameters[0]; // [6,6]
  const at::Tensor both = at::tanh(at::linear(call.inputs[0], w)) * call.parameters[1];
  const at::Tensor left = both.narrow(1, 0, 3);
  const at::Tensor right = both.narrow(1, 3, 3);
  return {at::sigmoid((left * right).matmul(w.t().narrow(0, 1, 3)) + call.inputs[0])};
}

ChainDriver tangled_chain(int blocks_count, bool saved_inputs) {
  ChainOf blocks;
  for (int block = 0; block < blocks_count; ++block) {
    const std::string name = std::to_string(block);
    const BlockUnits made = blocks.units(
        {{{.name = name + ".w", .shape = {6, 6}}}, {{.name = name + ".g", .shape = {6}}}});
    blocks.add(
        {.kind = "tangled",
         .function = tangled,
         .parameters = made.refs,
         .saved_inputs = {saved_inputs}},
        made.units);
  }
  ChainDriver driver = blocks.finish();
  for (const auto& unit : driver.chain().units) {
    unit->data().copy_(at::randn(unit->data().sizes()));
  }
  return driver;
}

TEST(AutogradBlock, RecomputeSplitStashAndRegatherChangeNoBit) {
  for (const bool saved_inputs : {true, false}) {
    ChainDriver driver = tangled_chain(3, saved_inputs);
    const StepBatch batches = {
        batch_of(at::randn({4, 6}), at::randn({4, 6})),
        batch_of(at::randn({2, 6}), at::randn({2, 6}))};
    const double loss = driver.run(batches).loss_sum;
    const Tensors plain = driver.gradients();
    for (const DriverOptions& options : std::vector<DriverOptions>{
             {.tape = TapeMode::kLean},
             {.recompute = true},
             {.split = true},
             {.stash = true},
             {.split = true, .stash = true},
             {.regather = true},
             {.recompute = true, .split = true, .stash = true, .regather = true}}) {
      EXPECT_EQ(driver.run(batches, options).loss_sum, loss);
      EXPECT_TRUE(bitwise_equal(driver.gradients(), plain));
    }
  }
}

TEST(AutogradBlock, EqualsOneAutogradGraph) {
  ChainDriver driver = tangled_chain(2, true);
  const MicroBatch batch = batch_of(at::randn({4, 6}), at::randn({4, 6}));
  driver.run({batch});
  Tensors leaves;
  at::Tensor y = batch.inputs;
  for (const char* name : {"0", "1"}) {
    for (const char* kind : {".w", ".g"}) {
      leaves.push_back(driver.parameter(std::string(name) + kind).clone().set_requires_grad(true));
    }
    const Tensors inputs = {y};
    y = tangled({inputs, TensorSpan(leaves).last(2), {}, BlockContext{}})[0];
  }
  (y - batch.labels).pow(2).mean().backward();
  EXPECT_LE(relative_difference(driver.gradient("0.w"), leaves[0].grad()), 1e-5);
  EXPECT_LE(relative_difference(driver.gradient("0.g"), leaves[1].grad()), 1e-5);
  EXPECT_LE(relative_difference(driver.gradient("1.w"), leaves[2].grad()), 1e-5);
  EXPECT_LE(relative_difference(driver.gradient("1.g"), leaves[3].grad()), 1e-5);
}

TEST(AutogradBlock, TheTapeOwnsNeitherInputsNorParameters) {
  ChainDriver driver = tangled_chain(1, true);
  ParamUnit& unit = *driver.chain().units[0];
  const Tensors inputs = {at::randn({4, 6})};
  const auto input_holders = inputs[0].storage().use_count();
  const auto unit_holders = unit.data().storage().use_count();
  ForwardResult result = driver.chain().blocks[0].block->forward(inputs, {}, {});
  std::vector<at::Tensor*> owned = result.tape->tensors();
  EXPECT_FALSE(owned.empty());
  for (const at::Tensor* tensor : owned) {
    EXPECT_FALSE(tensor->is_alias_of(inputs[0]));
    EXPECT_FALSE(tensor->is_alias_of(unit.data()));
  }
  // Nobody else holds the storages either.
  EXPECT_EQ(inputs[0].storage().use_count(), input_holders);
  EXPECT_EQ(unit.data().storage().use_count(), unit_holders);

  unit.bind_data({});
  const Tensors gradients = {at::ones({4, 6})};
  EXPECT_THROW(result.tape->backward(inputs, gradients, BackwardPart::kBoth, {}), InternalError);
}

TEST(AutogradBlock, ASpentTapeOwnsNothing) {
  ChainDriver driver = tangled_chain(1, true);
  const Tensors inputs = {at::randn({4, 6})};
  ForwardResult result = driver.chain().blocks[0].block->forward(inputs, {}, {});
  const Tensors gradients = {at::ones({4, 6})};
  result.tape->backward(inputs, gradients, BackwardPart::kBoth, {});
  EXPECT_TRUE(result.tape->tensors().empty());
  EXPECT_THROW(result.tape->backward(inputs, gradients, BackwardPart::kBoth, {}), InternalError);
}

TEST(AutogradBlock, AChangeInPlaceAfterSavingIsAnError) {
  AutogradBlock block({.kind = "in place", .function = [](const AutogradCall& call) -> Tensors {
                         at::Tensor y = at::sigmoid(call.inputs[0] * 1);
                         return {y.mul_(2)};
                       }});
  const Tensors inputs = {at::ones({3})};
  EXPECT_THROW(block.forward(inputs, {}, {}), InternalError);

  AutogradBlock later({.kind = "value", .function = [](const AutogradCall& call) -> Tensors {
                         return {at::sigmoid(call.inputs[0])};
                       }});
  ForwardResult result = later.forward(inputs, {}, {});
  result.values[0].mul_(2);
  const Tensors gradients = {at::ones({3})};
  EXPECT_THROW(result.tape->backward(inputs, gradients, BackwardPart::kBoth, {}), InternalError);

  AutogradBlock careless({.kind = "input", .function = [](const AutogradCall& call) -> Tensors {
                            at::Tensor x = call.inputs[0];
                            return {x.mul_(2)};
                          }});
  EXPECT_THROW(
      careless.forward(inputs, {.tape = TapeMode::kNone}, {.training = false}), InternalError);
}

TEST(AutogradBlock, ValuesPassedThroughUnusedAndUngraded) {
  AutogradBlock block({.kind = "skip", .function = [](const AutogradCall& call) -> Tensors {
                         return {call.inputs[0] * 2, call.inputs[1]};
                       }});
  const Tensors inputs = {at::ones({2}), at::ones({2}), at::ones({2}), at::ones({2})};
  ForwardResult result =
      block.forward(inputs, {.yields = {1}, .graded_inputs = {true, true, true, false}}, {});
  ASSERT_EQ(result.values.size(), 1U);
  EXPECT_TRUE(result.values[0].equal(inputs[1]));
  const Tensors gradients = {at::full({2}, 3.0F), at::full({2}, 5.0F)};
  const Tensors grads = result.tape->backward(inputs, gradients, BackwardPart::kBoth, {});
  EXPECT_TRUE(grads[0].equal(at::full({2}, 6.0F)));
  EXPECT_TRUE(grads[1].equal(gradients[1]));
  EXPECT_FALSE(grads[1].is_alias_of(gradients[1]));
  EXPECT_TRUE(grads[2].equal(at::zeros({2})));
  EXPECT_FALSE(grads[3].defined());
}

TEST(AutogradBlock, GradientsAddUpInFp32UnderBf16) {
  ChainOf blocks;
  const BlockUnits made = blocks.units({{{.name = "w", .shape = {}}}}, at::kBFloat16);
  blocks.add(
      {.kind = "scale",
       .function = [](const AutogradCall& call) -> Tensors {
         return {call.inputs[0].to(at::kFloat) * call.parameters[0].to(at::kFloat)};
       },
       .parameters = made.refs},
      made.units);
  ChainDriver driver = blocks.finish();
  driver.parameter("w").fill_(1);
  // d(x - t)^2 / dw = 2 x (x - t): 256 and 2^-8, whose sum bf16 cannot hold, over two
  // micro-batches.
  const StepBatch batches = {
      batch_of(at::ones({1, 1}), at::full({1, 1}, 1.0F - 256)),
      batch_of(at::ones({1, 1}), at::full({1, 1}, 1.0F - 1.0F / 256))};
  driver.run(batches);
  EXPECT_EQ(driver.gradient("w").item<float>(), 256 + 1.0F / 256);
}

TEST(AutogradBlock, DropoutGradientBelongsToTheMaskOfTheForward) {
  AutogradBlock block({.kind = "dropout", .function = [](const AutogradCall& call) -> Tensors {
                         const at::Tensor factors = kernels::dropout_factors(
                             4096,
                             1,
                             0.5,
                             {.seed = call.context.seed, .step = call.context.step},
                             call.context.batch->rows);
                         return {call.inputs[0] * factors};
                       }});
  const Tensors inputs = {at::ones({1, 4096, 1})};
  MicroBatch batch;
  batch.rows = at::zeros({1}, at::TensorOptions().dtype(at::kLong));
  const BlockContext context{.batch = &batch, .seed = 1, .step = 2};
  const at::Tensor y = block.forward(inputs, {.tape = TapeMode::kNone}, context).values[0];
  ForwardResult again = block.forward(inputs, {.yields = {}}, context);
  const Tensors gradients = {at::ones_like(inputs[0])};
  const Tensors grads = again.tape->backward(inputs, gradients, BackwardPart::kBoth, context);
  EXPECT_TRUE(grads[0].equal(y));
  EXPECT_NEAR(y.eq(2).sum().item<double>(), 2048, 5 * 32);
  EXPECT_TRUE(y.eq(0).logical_or(y.eq(2)).all().item<bool>());
}

AutogradSpec batch_norm(const std::vector<ParamRef>& parameters) {
  return {
      .kind = "batch norm",
      .function = [](const AutogradCall& call) -> Tensors {
        call.buffers[2].add_(1);
        return {at::batch_norm(
            call.inputs[0],
            call.parameters[0],
            call.parameters[1],
            call.buffers[0],
            call.buffers[1],
            call.context.training,
            0.1,
            1e-5,
            false)};
      },
      .parameters = parameters,
      .buffers = {at::zeros({1}), at::ones({1}), at::zeros({}, at::kLong)}};
}

TEST(AutogradBlock, RunningStatisticsAdvanceOnceWhateverIsRecomputed) {
  for (const bool recompute : {false, true}) {
    ChainOf blocks;
    const BlockUnits made =
        blocks.units({{{.name = "weight", .shape = {1}}}, {{.name = "bias", .shape = {1}}}});
    blocks.add(batch_norm(made.refs), made.units);
    ChainDriver driver = blocks.finish();
    auto& block = dynamic_cast<AutogradBlock&>(*driver.chain().blocks[0].block);
    const MicroBatch tens = batch_of(at::full({4, 1}, 10.0F), at::zeros({4, 1}));
    driver.evaluate({tens});
    driver.run({tens}, {.recompute = recompute});
    EXPECT_EQ(block.buffers()[0].item<float>(), 0.0F); // nothing persistent before the commit
    block.commit(true);
    EXPECT_FLOAT_EQ(block.buffers()[0].item<float>(), 1.0F);
    EXPECT_EQ(block.buffers()[2].item<int64_t>(), 1);

    driver.run({tens}, {.recompute = recompute});
    block.commit(false); // a step thrown away
    EXPECT_EQ(block.buffers()[2].item<int64_t>(), 1);
    driver.run({tens, tens}, {.recompute = recompute}); // folded in order
    block.commit(true);
    EXPECT_FLOAT_EQ(block.buffers()[0].item<float>(), 1.0F * 0.81F + 1.9F);
    EXPECT_EQ(block.buffers()[2].item<int64_t>(), 3);
  }
}

TEST(AutogradBlock, ARecomputeStartsFromTheBuffersOfItsMicroBatch) {
  ChainOf blocks; // y = x + count, count += 1
  blocks.add(
      {.kind = "counter",
       .function = [](const AutogradCall& call) -> Tensors {
         call.buffers[0].add_(1);
         return {call.inputs[0] + call.buffers[0]};
       },
       .buffers = {at::zeros({})}},
      {});
  ChainDriver driver = blocks.finish();
  Block& block = *driver.chain().blocks[0].block;
  const Tensors inputs = {at::zeros({1})};
  const ForwardRequest request{.tape = TapeMode::kNone};
  const auto forward = [&](int micro_batch) {
    return block.forward(inputs, request, {.micro_batch = micro_batch}).values[0].item<float>();
  };
  EXPECT_EQ(forward(0), 1);
  EXPECT_EQ(forward(1), 2);
  EXPECT_EQ(forward(1), 2);
  EXPECT_EQ(forward(0), 1);
  EXPECT_EQ(forward(2), 3);
  block.commit(true);
  EXPECT_EQ(forward(0), 4);
}

TEST(AutogradTerminal, ALossOfLibTorchOperations) {
  AutogradTerminal terminal({.kind = "loss", .function = [](const AutogradCall& call) -> Tensors {
                               return {(call.inputs[0] - call.context.batch->labels).pow(2).sum()};
                             }});
  const MicroBatch batch = batch_of(at::ones({3, 2}), at::randn({3, 2}));
  const Tensors inputs = {at::randn({3, 2})};
  const BlockContext context{.batch = &batch, .loss_scale = 0.25};
  const LossResult mine = terminal.forward(inputs, true, context);
  const LossResult reference = SquaredErrorBlock().forward(inputs, true, context);
  EXPECT_NEAR(mine.loss_sum, reference.loss_sum, 1e-5);
  EXPECT_LE(relative_difference(mine.grad_inputs[0], reference.grad_inputs[0]), 1e-6);
  EXPECT_TRUE(terminal.forward(inputs, false, context).grad_inputs.empty());
}

} // namespace
} // namespace palimpsest
