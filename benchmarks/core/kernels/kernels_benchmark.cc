// Each kernel against what LibTorch offers for it, at the shapes of a small LLaMA: hidden 512,
// intermediate 1408, 8 heads over 4, vocabulary 8192, 2 x 512 tokens. Both sides run in turn inside
// one measurement, so that load on the machine hits them alike; the time shown is ours, "aten/ours"
// the ratio of the medians.

#include <palimpsest/benchmarks/core/timing.h>
#include <palimpsest/core/kernels/activation.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/core/kernels/cross_entropy.h>
#include <palimpsest/core/kernels/linear.h>
#include <palimpsest/core/kernels/norm.h>
#include <palimpsest/core/kernels/optimizer_math.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/randint.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <cmath>
#include <vector>

namespace palimpsest::kernels {
namespace {

constexpr int64_t kTokens = 1024;
constexpr int64_t kHidden = 512;
constexpr int64_t kIntermediate = 1408;
constexpr int64_t kVocabulary = 8192;

at::ScalarType dtype_of(const benchmark::State& state) {
  return state.range(0) == 0 ? at::kFloat : at::kBFloat16;
}

at::Tensor sample(at::IntArrayRef shape, at::ScalarType dtype) {
  return at::randn(shape, at::kFloat).to(dtype);
}

at::Tensor leaf(const at::Tensor& values) {
  return values.detach().requires_grad_(true);
}

template <typename Ours, typename Theirs>
void compare(benchmark::State& state, Ours&& ours, Theirs&& theirs) {
  ours();
  theirs();
  std::vector<double> our_times;
  std::vector<double> their_times;
  for (auto _ : state) {
    our_times.push_back(seconds(ours));
    their_times.push_back(seconds(theirs));
    state.SetIterationTime(our_times.back());
  }
  state.counters["aten/ours"] = median(their_times) / median(our_times);
}

void BM_LinearForward(benchmark::State& state) {
  const at::Tensor x = sample({kTokens, kHidden}, dtype_of(state));
  const at::Tensor w = sample({2 * kIntermediate, kHidden}, dtype_of(state));
  compare(
      state, [&] { linear_forward(x, w); }, [&] { at::linear(x, w); });
}

void BM_LinearBackwardInput(benchmark::State& state) {
  const at::Tensor dy = sample({kTokens, 2 * kIntermediate}, dtype_of(state));
  const at::Tensor w = sample({2 * kIntermediate, kHidden}, dtype_of(state));
  compare(
      state, [&] { linear_backward_input(dy, w); }, [&] { at::mm(dy, w); });
}

void BM_LinearBackwardWeight(benchmark::State& state) {
  const at::Tensor dy = sample({kTokens, 2 * kIntermediate}, dtype_of(state));
  const at::Tensor x = sample({kTokens, kHidden}, dtype_of(state));
  const at::Tensor grad = at::zeros({2 * kIntermediate, kHidden}, at::kFloat);
  compare(
      state, [&] { linear_backward_weight(dy, x, grad); }, [&] { grad.add_(at::mm(dy.t(), x)); });
}

struct AttentionInputs {
  explicit AttentionInputs(at::ScalarType dtype)
      : fused(sample({2, 512, 16, 64}, dtype)), dout(sample({2, 512, 8, 64}, dtype)) {}
  at::Tensor q() const {
    return fused.narrow(2, 0, 8);
  }
  at::Tensor k() const {
    return fused.narrow(2, 8, 4);
  }
  at::Tensor v() const {
    return fused.narrow(2, 12, 4);
  }
  at::Tensor fused;
  at::Tensor dout;
};

at::Tensor heads_first(const at::Tensor& tensor) {
  return tensor.transpose(1, 2);
}

auto flash_forward(const AttentionInputs& in) {
  return at::_scaled_dot_product_flash_attention_for_cpu(
      heads_first(in.q()), heads_first(in.k()), heads_first(in.v()), 0.0, true, {}, 0.125);
}

void BM_AttentionForward(benchmark::State& state) {
  const AttentionInputs in(dtype_of(state));
  compare(
      state,
      [&] { attention_forward(in.q(), in.k(), in.v(), 0.125, {.causal = true}); },
      [&] { flash_forward(in); });
}

void BM_AttentionBackward(benchmark::State& state) {
  const AttentionInputs in(dtype_of(state));
  const auto [out, logsumexp] = attention_forward(in.q(), in.k(), in.v(), 0.125, {.causal = true});
  const auto theirs = flash_forward(in);
  compare(
      state,
      [&] {
        attention_backward(
            in.dout, in.q(), in.k(), in.v(), out, logsumexp, 0.125, {.causal = true});
      },
      [&] {
        at::_scaled_dot_product_flash_attention_for_cpu_backward(
            heads_first(in.dout),
            heads_first(in.q()),
            heads_first(in.k()),
            heads_first(in.v()),
            std::get<0>(theirs),
            std::get<1>(theirs),
            0.0,
            true,
            {},
            0.125);
      });
}

// From here on forward and backward together, against autograd.

void BM_RmsNorm(benchmark::State& state) {
  const at::Tensor x = sample({kTokens, kHidden}, dtype_of(state));
  const at::Tensor w = sample({kHidden}, dtype_of(state));
  const at::Tensor dy = sample({kTokens, kHidden}, dtype_of(state));
  const at::Tensor grad = at::zeros({kHidden}, at::kFloat);
  compare(
      state,
      [&] {
        const auto output = rms_norm_forward(x, w, 1e-5);
        rms_norm_backward(dy, x, w, output.rstd, grad);
      },
      [&] {
        const at::Tensor input = leaf(x);
        const at::Tensor wide = input.to(at::kFloat);
        const at::Tensor y = wide * ((wide * wide).mean(-1, true) + 1e-5).rsqrt();
        (leaf(w) * y.to(x.scalar_type())).backward(dy);
      });
}

void BM_SwiGlu(benchmark::State& state) {
  const at::Tensor gate_up = sample({kTokens, 2 * kIntermediate}, dtype_of(state));
  const at::Tensor doutput = sample({kTokens, kIntermediate}, dtype_of(state));
  compare(
      state,
      [&] {
        glu_forward(gate_up, Activation::kSilu);
        glu_backward(doutput, gate_up, Activation::kSilu);
      },
      [&] {
        const at::Tensor input = leaf(gate_up);
        const at::Tensor gate = at::silu(input.narrow(1, 0, kIntermediate));
        (gate * input.narrow(1, kIntermediate, kIntermediate)).backward(doutput);
      });
}

void BM_CrossEntropy(benchmark::State& state) {
  const at::Tensor logits = sample({kTokens, kVocabulary}, dtype_of(state));
  const at::Tensor labels = at::randint(kVocabulary, {kTokens}, at::kLong);
  const at::Tensor chunk = logits.clone();
  compare(
      state,
      [&] { cross_entropy_forward_backward_(chunk, labels, 1.0 / kTokens); },
      [&] { at::cross_entropy_loss(leaf(logits).to(at::kFloat), labels).backward(); });
}

void BM_AdamW(benchmark::State& state) {
  const int64_t elements = 8 << 20;
  const at::Tensor g = at::randn({elements}, at::kFloat);
  std::vector<at::Tensor> buffers;
  for (int i = 0; i < 6; ++i) {
    buffers.push_back(at::full({elements}, 0.1, at::kFloat));
  }
  std::vector<at::Tensor> p{buffers[3]}, grads{g}, m{buffers[4]}, v{buffers[5]}, none;
  std::vector<at::Tensor> steps{at::full({}, 3, at::kFloat)};
  compare(
      state,
      [&] { adamw_update(buffers[0], g, buffers[1], buffers[2], {.step = 3}); },
      [&] {
        at::_fused_adamw_(p, grads, m, v, none, steps, 1e-3, 0.9, 0.999, 0.0, 1e-8, false, false);
      });
}

#define PALIMPSEST_BOTH(NAME) \
  BENCHMARK(NAME)->ArgName("bf16")->Arg(0)->Arg(1)->UseManualTime()->Unit(benchmark::kMillisecond)

PALIMPSEST_BOTH(BM_LinearForward);
PALIMPSEST_BOTH(BM_LinearBackwardInput);
PALIMPSEST_BOTH(BM_LinearBackwardWeight);
PALIMPSEST_BOTH(BM_AttentionForward);
PALIMPSEST_BOTH(BM_AttentionBackward);
PALIMPSEST_BOTH(BM_RmsNorm);
PALIMPSEST_BOTH(BM_SwiGlu);
PALIMPSEST_BOTH(BM_CrossEntropy);
BENCHMARK(BM_AdamW)->UseManualTime()->Unit(benchmark::kMillisecond);

} // namespace
} // namespace palimpsest::kernels
