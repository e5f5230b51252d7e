// Covers: attention_block.cc, mlp_block.cc, block_support.cc, weight_jobs.cc, residual_tape.cc
// The decoder's hand-written blocks against AutogradBlocks of the same formulas in LibTorch
// operations.

#include <palimpsest/tests/core/models/chain_driver.h>

#include <palimpsest/core/models/attention_block.h>
#include <palimpsest/core/models/autograd_block.h>
#include <palimpsest/core/models/mlp_block.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/outer.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

#include <cmath>

namespace palimpsest {
namespace {

constexpr int64_t kHidden = 24;
constexpr int64_t kHeads = 4;
constexpr int64_t kKvHeads = 2;
constexpr int64_t kHeadDim = 8;
constexpr int64_t kInner = 40;
constexpr double kEps = 1e-5;

at::Tensor norm(const at::Tensor& x, const at::Tensor& gain) {
  return x * at::rsqrt(x.pow(2).mean(-1, true) + kEps) * gain;
}

/// x [B,T,heads,D]: feature i turns with feature i + D/2 by position * 10000^(-2i/D).
at::Tensor rotate(const at::Tensor& x) {
  const at::Tensor frequencies = at::pow(10000.0, at::arange(0, kHeadDim, 2) * (-1.0 / kHeadDim));
  const at::Tensor angles = at::outer(at::arange(x.size(1)).to(at::kFloat), frequencies);
  const at::Tensor cosines = angles.cos().unsqueeze(1);
  const at::Tensor sines = angles.sin().unsqueeze(1);
  const at::Tensor first = x.narrow(3, 0, kHeadDim / 2);
  const at::Tensor second = x.narrow(3, kHeadDim / 2, kHeadDim / 2);
  return at::cat({first * cosines - second * sines, second * cosines + first * sines}, /*dim=*/3);
}

Tensors attention(const AutogradCall& call) {
  const at::Tensor& x = call.inputs[0];
  const int64_t rows = x.size(0);
  const int64_t length = x.size(1);
  const at::Tensor qkv =
      at::linear(norm(x, call.parameters[0]), call.parameters[1], call.parameters[2])
          .view({rows, length, kHeads + 2 * kKvHeads, kHeadDim});
  const auto heads = [](const at::Tensor& part) { // [B,heads,T,D]
    return part.repeat_interleave(kHeads / part.size(2), 2).transpose(1, 2);
  };
  const at::Tensor q = heads(rotate(qkv.narrow(2, 0, kHeads)));
  const at::Tensor k = heads(rotate(qkv.narrow(2, kHeads, kKvHeads)));
  const at::Tensor v = heads(qkv.narrow(2, kHeads + kKvHeads, kKvHeads));
  const at::Tensor future = at::ones({length, length}).triu(1).to(at::kBool);
  const at::Tensor scores =
      (q.matmul(k.transpose(2, 3)) / std::sqrt(8.0)).masked_fill(future, -INFINITY);
  const at::Tensor mixed =
      at::softmax(scores, -1).matmul(v).transpose(1, 2).reshape({rows, length, -1});
  return {x + at::linear(mixed, call.parameters[3], call.parameters[4])};
}

Tensors mlp(const AutogradCall& call) {
  const at::Tensor& x = call.inputs[0];
  const at::Tensor gate_up =
      at::linear(norm(x, call.parameters[0]), call.parameters[1], call.parameters[2]);
  const at::Tensor gated =
      at::silu(gate_up.narrow(2, 0, kInner)) * gate_up.narrow(2, kInner, kInner);
  return {x + at::linear(gated, call.parameters[3], call.parameters[4])};
}

/// Runs forward and backward of one block: values, input gradient, parameter gradients.
Tensors run(Block& block, ParamUnit& unit, const at::Tensor& x, const at::Tensor& dy) {
  unit.bind_grad(at::zeros({unit.numel()}));
  const BlockContext context;
  const Tensors inputs = {x};
  const Tensors gradients = {dy};
  ForwardResult result = block.forward(inputs, {}, context);
  Tensors all = {result.values[0]};
  all.push_back(result.tape->backward(inputs, gradients, BackwardPart::kBoth, context)[0]);
  for (size_t index = 0; index < unit.parameters().size(); ++index) {
    all.push_back(unit.grad_view(index));
  }
  return all;
}

void expect_close(const Tensors& mine, const Tensors& reference) {
  ASSERT_EQ(mine.size(), reference.size());
  for (size_t index = 0; index < mine.size(); ++index) {
    EXPECT_EQ(mine[index].sizes(), reference[index].sizes());
    EXPECT_LE(relative_difference(mine[index], reference[index]), 1e-5) << index;
  }
}

BlockUnits make_units(Chain& chain, const std::vector<std::vector<int64_t>>& shapes) {
  std::vector<std::vector<Parameter>> groups;
  for (const std::vector<int64_t>& shape : shapes) {
    groups.push_back({{.name = "p" + std::to_string(groups.size()), .shape = shape}});
  }
  BlockUnits made =
      add_units(chain, "unit", groups, at::kFloat, [](const std::string&) { return true; });
  chain.units[0]->bind_data(at::randn({chain.units[0]->numel()}) * 0.3);
  return made;
}

MlpWeights mlp_weights(const BlockUnits& made) {
  return {
      .norm = {.gain = made.refs[0], .eps = kEps},
      .inner = {.products = {{.weight = made.refs[1], .bias = made.refs[2]}}},
      .down = {.products = {{.weight = made.refs[3], .bias = made.refs[4]}}}};
}

TEST(HandWritten, AttentionEqualsAutograd) {
  Chain chain;
  const int64_t width = (kHeads + 2 * kKvHeads) * kHeadDim;
  const BlockUnits made = make_units(
      chain, {{kHidden}, {width, kHidden}, {width}, {kHidden, kHeads * kHeadDim}, {kHidden}});
  AttentionBlock block(
      {.hidden_size = kHidden, .num_heads = kHeads, .num_kv_heads = kKvHeads, .head_dim = kHeadDim},
      {.norm = {.gain = made.refs[0], .eps = kEps},
       .qkv = {.products = {{.weight = made.refs[1], .bias = made.refs[2]}}},
       .output = {.products = {{.weight = made.refs[3], .bias = made.refs[4]}}}},
      std::make_shared<RotaryCache>(RopeConfig{}, kHeadDim, 64));
  AutogradBlock reference({.kind = "attention", .function = attention, .parameters = made.refs});
  const at::Tensor x = at::randn({3, 10, kHidden});
  const at::Tensor dy = at::randn({3, 10, kHidden});
  expect_close(run(block, *chain.units[0], x, dy), run(reference, *chain.units[0], x, dy));
}

TEST(HandWritten, MlpEqualsAutograd) {
  Chain chain;
  const BlockUnits made = make_units(
      chain, {{kHidden}, {2 * kInner, kHidden}, {2 * kInner}, {kHidden, kInner}, {kHidden}});
  MlpBlock block({.hidden_size = kHidden, .intermediate_size = kInner}, mlp_weights(made));
  AutogradBlock reference({.kind = "mlp", .function = mlp, .parameters = made.refs});
  const at::Tensor x = at::randn({3, 10, kHidden});
  const at::Tensor dy = at::randn({3, 10, kHidden});
  expect_close(run(block, *chain.units[0], x, dy), run(reference, *chain.units[0], x, dy));
}

/// Bytes of what a tape owns, each storage once.
int64_t owned_bytes(Tape& tape) {
  std::map<const void*, int64_t> storages;
  for (const at::Tensor* tensor : tape.tensors()) {
    storages[tensor->storage().unsafeGetStorageImpl()] =
        static_cast<int64_t>(tensor->storage().nbytes());
  }
  int64_t bytes = 0;
  for (const auto& [storage, size] : storages) {
    bytes += size;
  }
  return bytes;
}

TEST(HandWritten, TapesOwnWhatTheyPromise) {
  Chain chain;
  const BlockUnits made = make_units(
      chain, {{kHidden}, {2 * kInner, kHidden}, {2 * kInner}, {kHidden, kInner}, {kHidden}});
  MlpBlock block({.hidden_size = kHidden, .intermediate_size = kInner}, mlp_weights(made));
  const Tensors inputs = {at::randn({3, 10, kHidden})};
  constexpr int64_t kRows = 30;
  const auto bytes = [&](TapeMode tape) {
    return owned_bytes(*block.forward(inputs, {.tape = tape, .yields = {}}, {}).tape);
  };
  EXPECT_EQ(bytes(TapeMode::kLean), kRows * (2 * kInner + 1) * 4);
  EXPECT_EQ(bytes(TapeMode::kFull), kRows * (3 * kInner + kHidden + 1) * 4);
  EXPECT_EQ(block.forward(inputs, {.tape = TapeMode::kNone, .yields = {}}, {}).tape, nullptr);
}

} // namespace
} // namespace palimpsest
