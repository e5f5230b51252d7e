// Covers: core/kernels/attention_blocked.cc

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/attention.h>
#include <palimpsest/tests/core/kernels/kernels_testing.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/softmax.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace palimpsest::kernels {
namespace {

using AttentionTest = KernelsTest;
PALIMPSEST_EACH_DTYPE(AttentionTest);

struct Case {
  int64_t batch, queries, keys, heads, kv_heads, width;
  bool causal;
  double p;
  int64_t window = 0;
  std::vector<int64_t> documents = {}; // tokens of each; of every other sequence in reverse order

  AttentionMask mask() const {
    return {.causal = causal, .window = window, .positions = positions()};
  }
  at::Tensor positions() const {
    if (documents.empty()) {
      return {};
    }
    at::Tensor all = at::empty({batch, queries}, at::kLong);
    for (int64_t b = 0; b < batch; ++b) {
      std::vector<int64_t> lengths = documents;
      if (b % 2 == 1) {
        std::ranges::reverse(lengths);
      }
      int64_t begin = 0;
      for (const int64_t length : lengths) {
        all.select(0, b).narrow(0, begin, length).copy_(at::arange(length));
        begin += length;
      }
    }
    return all;
  }
};

// Textbook attention on [B,T,H,D] in fp64, for autograd. `factors` [B,H,T,S] multiply the
// probabilities.
at::Tensor formula(
    const Case& c,
    const at::Tensor& q,
    const at::Tensor& k,
    const at::Tensor& v,
    const at::Tensor& factors,
    at::Tensor* logsumexp) {
  const int64_t group = c.heads / c.kv_heads;
  const at::Tensor k_heads = k.repeat_interleave(group, 2).permute({0, 2, 3, 1});
  const at::Tensor v_heads = v.repeat_interleave(group, 2).permute({0, 2, 1, 3});
  at::Tensor scores = at::matmul(q.permute({0, 2, 1, 3}), k_heads) / std::sqrt(c.width);
  if (c.causal) {
    const at::Tensor own = at::arange(c.queries) + (c.keys - c.queries); // each query's own key
    const at::Tensor distance = own.unsqueeze(1) - at::arange(c.keys).unsqueeze(0);
    at::Tensor hidden = distance.lt(0);
    if (c.window > 0) {
      hidden = hidden.logical_or(distance.ge(c.window));
    }
    if (!c.documents.empty()) { // [B,1,T,S]
      hidden = hidden.logical_or(distance > c.positions().unsqueeze(2)).unsqueeze(1);
    }
    scores = scores.masked_fill(hidden, -std::numeric_limits<double>::infinity());
  }
  *logsumexp = at::logsumexp(scores, {3}).detach();
  return at::matmul(at::softmax(scores, -1) * factors, v_heads).permute({0, 2, 1, 3});
}

void expect_agreement(const Case& c, at::ScalarType dtype, double limit) {
  SCOPED_TRACE(
      testing::Message() << c.batch << "x" << c.queries << "x" << c.keys << " heads " << c.heads
                         << "/" << c.kv_heads << "x" << c.width << " p " << c.p << " window "
                         << c.window << " documents " << c.documents.size());
  const at::Tensor q = sample_leaf({c.batch, c.queries, c.heads, c.width}, dtype);
  const at::Tensor k = sample_leaf({c.batch, c.keys, c.kv_heads, c.width}, dtype);
  const at::Tensor v = sample_leaf({c.batch, c.keys, c.kv_heads, c.width}, dtype);
  const at::Tensor dout = sample({c.batch, c.queries, c.heads, c.width}, dtype);
  const AttentionDropout dropout{c.p, {.seed = 5, .step = 2}, at::arange(c.batch, at::kLong) + 10};
  at::Tensor factors = at::ones({c.batch, c.heads, c.queries, c.keys}, at::kFloat);
  if (c.p > 0) {
    for (int64_t b = 0; b < c.batch; ++b) {
      for (int64_t h = 0; h < c.heads; ++h) {
        attention_dropout_factors(
            factors.select(0, b).select(0, h).data_ptr<float>(),
            {.row = b + 10, .head = h, .queries = c.queries, .keys = c.keys},
            c.p,
            dropout.key);
      }
    }
  }
  at::Tensor expected_logsumexp;
  const at::Tensor expected = formula(c, q, k, v, factors.to(at::kDouble), &expected_logsumexp);
  expected.backward(dout);

  // The usual inputs: views of one fused tensor, and the gradients written into another.
  const int64_t rows = c.queries == c.keys ? c.heads + 2 * c.kv_heads : 0;
  at::Tensor q_in = q.detach().to(dtype);
  at::Tensor k_in = k.detach().to(dtype);
  at::Tensor v_in = v.detach().to(dtype);
  AttentionGradients into;
  if (rows > 0) {
    const auto options = at::TensorOptions(dtype);
    const at::Tensor fused = at::empty({c.batch, c.queries, rows, c.width}, options);
    const at::Tensor dfused = at::full({c.batch, c.queries, rows, c.width}, NAN, options);
    const auto part = [&](const at::Tensor& whole, int64_t first, int64_t count) {
      return whole.narrow(2, first, count);
    };
    part(fused, 0, c.heads).copy_(q_in);
    part(fused, c.heads, c.kv_heads).copy_(k_in);
    part(fused, c.heads + c.kv_heads, c.kv_heads).copy_(v_in);
    q_in = part(fused, 0, c.heads);
    k_in = part(fused, c.heads, c.kv_heads);
    v_in = part(fused, c.heads + c.kv_heads, c.kv_heads);
    into = {
        part(dfused, 0, c.heads),
        part(dfused, c.heads, c.kv_heads),
        part(dfused, c.heads + c.kv_heads, c.kv_heads)};
  }
  const double scale = 1 / std::sqrt(c.width);
  const auto [out, logsumexp] = attention_forward(q_in, k_in, v_in, scale, c.mask(), dropout);
  EXPECT_EQ(out.scalar_type(), dtype);
  EXPECT_TRUE(out.is_contiguous());
  EXPECT_LE(difference(out, expected.detach()), limit);
  EXPECT_LE(difference(logsumexp, expected_logsumexp), std::min(limit, 1e-5));
  const auto gradients = attention_backward(
      dout.to(dtype), q_in, k_in, v_in, out, logsumexp, scale, c.mask(), dropout, into);
  // With a single key the probabilities are 1 and the gradients of q and k cancel to zero.
  if (c.keys > 1 && c.window != 1) {
    EXPECT_LE(difference(gradients.dq, q.grad()), 3 * limit);
    EXPECT_LE(difference(gradients.dk, k.grad()), 3 * limit);
  } else {
    EXPECT_LE(gradients.dq.abs().max().item<double>(), c.width * 30 * limit);
  }
  EXPECT_LE(difference(gradients.dv, v.grad()), 2 * limit);
  if (into.dq.defined()) {
    EXPECT_EQ(into.dq.data_ptr(), gradients.dq.data_ptr());
  }
}

const std::vector<Case> kCases{
    {1, 1, 1, 1, 1, 7, true, 0},
    {2, 7, 7, 4, 2, 24, true, 0},
    {1, 67, 67, 2, 1, 56, true, 0},
    {1, 67, 24, 2, 2, 16, false, 0},
    {2, 128, 128, 2, 1, 64, false, 0},
    {1, 129, 129, 3, 1, 64, true, 0},
    {1, 700, 700, 2, 1, 8, true, 0}, // two tiles of keys: the running maximum moves
    {1, 130, 1100, 1, 1, 8, false, 0},
    {2, 67, 67, 4, 2, 16, true, 0.25},
    {1, 600, 600, 1, 1, 8, true, 0.5},
    {1, 7, 7, 2, 1, 8, true, 0, 1}, // each query sees itself alone
    {2, 67, 67, 4, 2, 16, true, 0, 5},
    {2, 67, 67, 2, 1, 16, true, 0, 100}, // wider than the sequence
    {1, 300, 300, 2, 1, 8, true, 0.25, 128},
    {1, 1200, 1200, 2, 1, 8, true, 0, 100}, // whole tiles of keys are hidden
    {1, 1200, 1200, 1, 1, 8, true, 0.25, 700},
    {1, 1, 1100, 4, 2, 16, true, 0}, // the queries are the last of more keys
    {2, 67, 130, 4, 2, 16, true, 0.25},
    {1, 130, 1100, 2, 1, 8, true, 0, 100},
    {2, 67, 67, 4, 2, 16, true, 0, 0, {3, 1, 40, 23}},
    {2, 67, 67, 2, 1, 16, true, 0.25, 20, {30, 37}},
    {2, 7, 7, 2, 1, 8, true, 0, 0, {2, 1, 2, 2}},
    {2, 1200, 1200, 2, 1, 8, true, 0, 0, {100, 500, 200, 400}}, // whole tiles of keys are hidden
    {1, 1200, 1200, 1, 1, 8, true, 0.25, 90, {700, 500}},
};

TEST_P(AttentionTest, AgreesWithAutogradOfTheFormula) {
  for (const Case& c : kCases) {
    expect_agreement(c, GetParam(), GetParam() == at::kFloat ? 5e-6 : 1.2e-2);
  }
}

TEST(AttentionFallbackTest, Fp64AgreesWithAutograd) {
  for (const Case& c : kCases) {
    expect_agreement(c, at::kDouble, 1e-6 /* dropout's factor is fp32 */);
  }
}

TEST_P(AttentionTest, LargeScoresNeitherOverflowNorVanish) {
  const auto dtype = GetParam();
  const at::Tensor q = at::full({1, 600, 1, 8}, 30, dtype);
  const at::Tensor k = q.clone();
  k.select(1, 599).fill_(40); // seen by the last query alone, in the second tile
  const at::Tensor v = at::zeros({1, 600, 1, 8}, dtype);
  v.select(1, 599).fill_(1);
  const auto [out, logsumexp] = attention_forward(q, k, v, 1.0, {.causal = true});
  EXPECT_EQ(out.narrow(1, 0, 599).abs().max().item<float>(), 0);
  EXPECT_EQ(out.select(1, 599).min().item<float>(), 1);
  EXPECT_NEAR(logsumexp.select(2, 599).item<float>(), 9600, 1e-2); // 8 * 30 * 40
  EXPECT_NEAR(logsumexp.select(2, 0).item<float>(), 7200, 1e-2); // 8 * 30 * 30
}

TEST_P(AttentionTest, GivesADocumentWhatItHasAlone) {
  const auto dtype = GetParam();
  const Case packed{1, 900, 900, 2, 1, 16, true, 0, 0, {130, 600, 170}};
  const at::Tensor q = sample({1, 900, 2, 16}, dtype).to(dtype);
  const at::Tensor k = sample({1, 900, 1, 16}, dtype).to(dtype);
  const at::Tensor v = sample({1, 900, 1, 16}, dtype).to(dtype);
  const at::Tensor dout = sample({1, 900, 2, 16}, dtype).to(dtype);
  const auto [out, logsumexp] = attention_forward(q, k, v, 0.25, packed.mask());
  const auto gradients = attention_backward(dout, q, k, v, out, logsumexp, 0.25, packed.mask());
  const double limit = dtype == at::kFloat ? 2e-6 : 1e-2;
  int64_t begin = 0;
  for (const int64_t length : packed.documents) {
    const auto part = [&](const at::Tensor& whole) {
      return whole.narrow(1, begin, length).contiguous();
    };
    const AttentionMask causal{.causal = true};
    const auto alone = attention_forward(part(q), part(k), part(v), 0.25, causal);
    EXPECT_LE(difference(part(out), alone.out.to(at::kDouble)), limit);
    const auto own = attention_backward(
        part(dout), part(q), part(k), part(v), alone.out, alone.logsumexp, 0.25, causal);
    EXPECT_LE(difference(part(gradients.dq), own.dq.to(at::kDouble)), limit);
    EXPECT_LE(difference(part(gradients.dk), own.dk.to(at::kDouble)), limit);
    EXPECT_LE(difference(part(gradients.dv), own.dv.to(at::kDouble)), limit);
    begin += length;
  }
}

TEST_P(AttentionTest, RepeatsBitwise) {
  const auto dtype = GetParam();
  const at::Tensor q = sample({2, 300, 4, 16}, dtype).to(dtype);
  const at::Tensor k = sample({2, 300, 2, 16}, dtype).to(dtype);
  const auto first = attention_forward(q, k, k, 0.25, {.causal = true});
  const auto gradients =
      attention_backward(q, q, k, k, first.out, first.logsumexp, 0.25, {.causal = true});
  for (int repeat = 0; repeat < 5; ++repeat) {
    const auto again = attention_forward(q, k, k, 0.25, {.causal = true});
    EXPECT_TRUE(same_bits(again.out, first.out));
    const auto other =
        attention_backward(q, q, k, k, again.out, again.logsumexp, 0.25, {.causal = true});
    EXPECT_TRUE(same_bits(other.dq, gradients.dq));
    EXPECT_TRUE(same_bits(other.dk, gradients.dk));
    EXPECT_TRUE(same_bits(other.dv, gradients.dv));
  }
}

TEST(AttentionMaskTest, CountsThePairsThatAQuerySees) {
  for (const int64_t length : {1, 2, 7, 64}) {
    for (const int64_t window : {0, 1, 2, 6, 7, 8, 100}) {
      int64_t pairs = 0;
      for (int64_t query = 0; query < length; ++query) {
        for (int64_t key = 0; key <= query; ++key) {
          pairs += window == 0 || query - key < window ? 1 : 0;
        }
      }
      EXPECT_EQ(causal_pairs(length, window), pairs) << length << " " << window;
    }
  }
}

TEST(AttentionErrorsTest, MismatchesAreOurErrors) {
  const at::Tensor q = at::zeros({1, 4, 3, 8}, at::kFloat);
  const at::Tensor k = at::zeros({1, 4, 2, 8}, at::kFloat);
  EXPECT_THROW(attention_forward(q, k, k, 1.0, {.causal = true}), InternalError); // 3 heads over 2
  const at::Tensor longer = at::zeros({1, 5, 3, 8}, at::kFloat);
  EXPECT_THROW(attention_forward(longer, q, q, 1.0, {.causal = true}), InternalError);
  EXPECT_THROW(
      attention_forward(q, q, q, 1.0, {.causal = true}, {.p = 0.5}), InternalError); // no rows
  EXPECT_THROW(attention_forward(q, q, q, -1.0, {.causal = true}), InternalError);
  const at::Tensor positions = at::zeros({1, 4}, at::kLong);
  attention_forward(q, q, q, 1.0, {.causal = true, .positions = positions});
  EXPECT_THROW(attention_forward(q, q, q, 1.0, {.positions = positions}), InternalError);
  EXPECT_THROW(
      attention_forward(q, longer, longer, 1.0, {.causal = true, .positions = positions}),
      InternalError);
  EXPECT_THROW(
      attention_forward(q, q, q, 1.0, {.causal = true, .positions = positions.narrow(1, 0, 3)}),
      InternalError);
  EXPECT_THROW(
      attention_forward(q, q, q, 1.0, {.causal = true, .positions = positions.to(at::kInt)}),
      InternalError);
}

} // namespace
} // namespace palimpsest::kernels
