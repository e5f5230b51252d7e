#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/attention_blocked.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/attention_blocked.h>
#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/onednn_code.h>
#include <palimpsest/core/kernels/simd-inl.h>
#include <palimpsest/core/kernels/softmax-inl.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <oneapi/dnnl/dnnl.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <new>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

// A tile of scores is kQueries x kKeys fp32, 256 KiB: it stays in the second-level cache.
constexpr int64_t kQueries = 128;
constexpr int64_t kKeys = 512;

/// fp32 rows with a row stride.
struct Panel {
  float* data;
  int64_t stride;
};

/// The rows of one head of [B,T,H,D].
template <typename T>
struct Head {
  Head(const at::Tensor& tensor, int64_t b, int64_t h)
      : data(tensor.data_ptr<T>() + b * tensor.stride(0) + h * tensor.stride(2)),
        stride(tensor.stride(1)), width(tensor.size(3)) {}
  T* row(int64_t t) const {
    return data + t * stride;
  }
  T* data;
  int64_t stride;
  int64_t width;
};

// Rows as fp32: in place where they are, otherwise widened into `scratch`.
template <typename T>
Panel widen(const Head<T>& head, int64_t first, int64_t rows, float* scratch) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {head.row(first), head.stride};
  } else {
    const FloatTag d;
    for (int64_t r = 0; r < rows; ++r) {
      for_each_vector(head.width, [&](int64_t i, size_t count) HWY_ATTR {
        store(d, load(d, head.row(first + r) + i, count), scratch + r * head.width + i, count);
      });
    }
    return {scratch, head.width};
  }
}

// Where results accumulate in fp32: the output itself where it is fp32, otherwise `scratch`.
template <typename T>
Panel accumulator(const Head<T>& head, int64_t first, float* scratch) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {head.row(first), head.stride};
  } else {
    return {scratch, head.width};
  }
}

// head[first + r] = panel[r] * factors[r] (or 1).
template <typename T>
void write_rows(
    Panel panel,
    const float* factors,
    const Head<T>& head,
    int64_t first,
    int64_t rows) {
  if (sizeof(T) == sizeof(float) && factors == nullptr) {
    return; // it accumulated in place
  }
  const FloatTag d;
  for (int64_t r = 0; r < rows; ++r) {
    const auto factor = hn::Set(d, factors == nullptr ? 1.0F : factors[r]);
    for_each_vector(head.width, [&](int64_t i, size_t count) HWY_ATTR {
      const auto value = hn::Mul(load(d, panel.data + r * panel.stride + i, count), factor);
      store(d, value, head.row(first + r) + i, count);
    });
  }
}

void zero_rows(Panel panel, int64_t rows, int64_t width) {
  for (int64_t r = 0; r < rows; ++r) {
    std::fill_n(panel.data + r * panel.stride, width, 0.0F);
  }
}

// c [m,n] = beta c + op(a) op(b), with k the summed dimension.
void product(
    char transpose_a,
    char transpose_b,
    std::array<int64_t, 3> mnk,
    Panel a,
    Panel b,
    float beta,
    Panel c) {
  const auto status = dnnl_sgemm(
      transpose_a,
      transpose_b,
      mnk[0],
      mnk[1],
      mnk[2],
      1.0F,
      a.data,
      a.stride,
      b.data,
      b.stride,
      beta,
      c.data,
      c.stride);
  if (status == dnnl_out_of_memory) {
    throw std::bad_alloc();
  }
  check(status == dnnl_success, "sgemm failed with status {}", static_cast<int>(status));
}

void multiply(float* values, const float* factors, int64_t count) {
  const FloatTag d;
  for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
    store(d, hn::Mul(load(d, values + i, lanes), load(d, factors + i, lanes)), values + i, lanes);
  });
}

/// Keys [begin, end) of a tile.
struct Visible {
  int64_t begin;
  int64_t end;
  int64_t count() const {
    return end - begin;
  }
};

/// What the queries of one sequence see.
class Sight {
 public:
  Sight(const AttentionProblem& p, int64_t b)
      : causal_(p.mask.causal), keys_(p.k.size(1)), earlier_(keys_ - p.q.size(1)),
        window_(p.mask.window),
        positions_(
            p.mask.positions.defined()
                ? p.mask.positions.const_data_ptr<int64_t>() + b * p.mask.positions.size(1)
                : nullptr) {}

  // Keys of the tile [first_key, first_key + keys) that query `t` sees; none is an empty range.
  Visible keys(int64_t t, int64_t first_key, int64_t keys) const {
    if (!causal_) {
      return {0, keys};
    }
    const int64_t end = std::clamp<int64_t>(earlier_ + t + 1 - first_key, 0, keys);
    return {std::clamp<int64_t>(first(t) - first_key, 0, end), end};
  }

  // Where the tiles of the block of queries from `t` on begin: tiles lie at multiples of their
  // width. Later queries see no earlier key.
  int64_t first_tile(int64_t t) const {
    return causal_ ? first(t) / kKeys * kKeys : 0;
  }

  // One past the last key that queries before `t` see.
  int64_t end_before(int64_t t) const {
    return causal_ ? earlier_ + t : keys_;
  }

 private:
  // The first key that query `t` sees.
  int64_t first(int64_t t) const {
    const int64_t by_window = window_ == 0 ? 0 : std::max<int64_t>(earlier_ + t + 1 - window_, 0);
    return positions_ == nullptr ? by_window : std::max(by_window, t - positions_[t]);
  }

  bool causal_;
  int64_t keys_;
  int64_t earlier_; // keys before the first query's own
  int64_t window_;
  const int64_t* positions_;
};

// Zeros for what a query does not see.
void hide(float* values, const Visible& visible, int64_t keys) {
  std::fill(values, values + visible.begin, 0.0F);
  std::fill(values + visible.end, values + keys, 0.0F);
}

// Running maximum and sum of each query of a block: the online softmax (Milakov and Gimelshein,
// 2018).
struct OnlineSoftmax {
  std::array<float, kQueries> maximum;
  std::array<float, kQueries> sum;

  OnlineSoftmax() {
    maximum.fill(-std::numeric_limits<float>::infinity());
    sum.fill(0.0F);
  }

  // Turns a row of scores into probabilities (up to the final division) and rescales what was
  // accumulated before.
  void add(
      int64_t row,
      float* scores,
      const Visible& visible,
      int64_t keys,
      float scale,
      float* out,
      int64_t width) {
    hide(scores, visible, keys);
    if (visible.count() == 0) {
      return;
    }
    float* seen = scores + visible.begin;
    const float top = std::max(maximum[row], scale * largest(seen, visible.count()));
    const float rescale = std::exp(maximum[row] - top);
    sum[row] = sum[row] * rescale + exponentials(seen, visible.count(), scale, top);
    maximum[row] = top;
    if (out != nullptr && rescale != 1.0F) {
      const FloatTag d;
      for_each_vector(width, [&](int64_t i, size_t lanes) HWY_ATTR {
        store(d, hn::Mul(load(d, out + i, lanes), hn::Set(d, rescale)), out + i, lanes);
      });
    }
  }
};

/// Scratch of one thread, in floats, cut from one allocation.
struct Scratch {
  static int64_t size(int64_t width, int64_t keys) {
    return 3 * kQueries * kKeys + (3 * kQueries + 2 * kKeys + 2 * keys) * width;
  }
  Scratch(float* base, int64_t width, int64_t keys)
      : scores{base, kKeys}, gradients{scores.data + kQueries * kKeys, kKeys},
        factors(gradients.data + kQueries * kKeys), queries(factors + kQueries * kKeys),
        upstream(queries + kQueries * width), out(upstream + kQueries * width),
        keys_tile(out + kQueries * width), values_tile(keys_tile + kKeys * width),
        dk(values_tile + kKeys * width), dv(dk + keys * width) {}
  Panel scores;
  Panel gradients;
  float* factors;
  float* queries;
  float* upstream;
  float* out;
  float* keys_tile;
  float* values_tile;
  float* dk;
  float* dv;
};

/// A tile of keys, fp32.
struct KeyTile {
  int64_t keys; // how many
  Panel k;
  Panel v;
  float beta; // with which its products enter sums over tiles: 0 for the first one
};

/// Up to kQueries queries of one head, from `first` on, and the keys that they see.
template <typename T>
struct QueryBlock {
  QueryBlock(
      const AttentionProblem& problem,
      int64_t sequence,
      int64_t head,
      int64_t first_query,
      const Scratch& own)
      : p(problem), b(sequence), h(head), first(first_query), scratch(own), width(p.q.size(3)),
        queries(std::min(kQueries, p.q.size(1) - first)), sight(p, b),
        first_key(sight.first_tile(first)), last_key(sight.end_before(first + queries)),
        keys_head(p.k, b, h / group()), values_head(p.v, b, h / group()),
        q(widen(Head<T>(p.q, b, h), first, queries, scratch.queries)) {}

  // How many heads share one key/value head.
  int64_t group() const {
    return p.q.size(2) / p.k.size(2);
  }

  // Of its first query; those of the others follow.
  float* logsumexp(const AttentionOutput& output) const {
    return output.logsumexp.data_ptr<float>() + (b * p.q.size(2) + h) * p.q.size(1) + first;
  }

  // The tile from key `c` on. Leaves in scratch q k^T, and the factors of dropout where there is any.
  KeyTile tile(int64_t c) const {
    const int64_t keys = std::min(kKeys, last_key - c);
    const Panel k = widen(keys_head, c, keys, scratch.keys_tile);
    const Panel v = widen(values_head, c, keys, scratch.values_tile);
    product('N', 'T', {queries, keys, width}, q, k, 0.0F, scratch.scores);
    if (p.dropout.p > 0) {
      const AttentionTile place{
          .row = p.dropout.rows.const_data_ptr<int64_t>()[b],
          .head = h,
          .first_query = first,
          .first_key = c,
          .queries = queries,
          .keys = keys};
      attention_dropout_factors(scratch.factors, place, p.dropout.p, p.dropout.key);
    }
    return {keys, k, v, c == first_key ? 0.0F : 1.0F};
  }

  const AttentionProblem& p;
  int64_t b;
  int64_t h;
  int64_t first;
  const Scratch& scratch;
  int64_t width;
  int64_t queries;
  Sight sight;
  int64_t first_key;
  int64_t last_key;
  Head<T> keys_head;
  Head<T> values_head;
  Panel q;
};

template <typename T>
void forward_block(const QueryBlock<T>& block, const AttentionOutput& output) {
  const AttentionProblem& p = block.p;
  const Scratch& scratch = block.scratch;
  const int64_t first = block.first;
  const int64_t queries = block.queries;
  const int64_t width = block.width;
  const Head<T> out_head(output.out, block.b, block.h);
  const Panel out = accumulator(out_head, first, scratch.out);
  OnlineSoftmax softmax;
  for (int64_t c = block.first_key; c < block.last_key; c += kKeys) {
    const auto [keys, k, v, beta] = block.tile(c);
    for (int64_t r = 0; r < queries; ++r) {
      float* scores = scratch.scores.data + r * kKeys;
      const Visible visible = block.sight.keys(first + r, c, keys);
      float* before = beta == 0 ? nullptr : out.data + r * out.stride;
      softmax.add(r, scores, visible, keys, static_cast<float>(p.scale), before, width);
      if (p.dropout.p > 0) {
        multiply(
            scores + visible.begin, scratch.factors + r * keys + visible.begin, visible.count());
      }
    }
    product('N', 'N', {queries, width, keys}, scratch.scores, v, beta, out);
  }
  float* logsumexp = block.logsumexp(output);
  for (int64_t r = 0; r < queries; ++r) {
    logsumexp[r] = softmax.maximum[r] + std::log(softmax.sum[r]);
    softmax.sum[r] = 1.0F / softmax.sum[r];
  }
  write_rows(out, softmax.sum.data(), out_head, first, queries);
}

// scores -> probabilities P, gradients dP -> dS = scale P (dP - delta), both zero where masked.
// With dropout factors F the probabilities that met the values were P F, so dP is taken times F,
// and P F is left in scores.
void softmax_backward_row(
    float* scores,
    float* gradients,
    const float* factors,
    const Visible& visible,
    int64_t keys,
    float scale,
    float logsumexp,
    float delta) {
  hide(scores, visible, keys);
  hide(gradients, visible, keys);
  scores += visible.begin;
  gradients += visible.begin;
  factors = factors == nullptr ? nullptr : factors + visible.begin;
  const FloatTag d;
  for_each_vector(visible.count(), [&](int64_t i, size_t lanes) HWY_ATTR {
    const auto p = hn::Exp(
        d, hn::MulSub(load(d, scores + i, lanes), hn::Set(d, scale), hn::Set(d, logsumexp)));
    auto dp = load(d, gradients + i, lanes);
    auto used = p;
    if (factors != nullptr) {
      const auto factor = load(d, factors + i, lanes);
      dp = hn::Mul(dp, factor);
      used = hn::Mul(p, factor);
    }
    const auto ds = hn::Mul(hn::Mul(p, hn::Set(d, scale)), hn::Sub(dp, hn::Set(d, delta)));
    store(d, used, scores + i, lanes);
    store(d, ds, gradients + i, lanes);
  });
}

template <typename T>
void backward_block(
    const QueryBlock<T>& block,
    const at::Tensor& dout,
    const AttentionOutput& output,
    const AttentionGradients& gradients,
    Panel dk,
    Panel dv) {
  const AttentionProblem& p = block.p;
  const Scratch& scratch = block.scratch;
  const int64_t first = block.first;
  const int64_t queries = block.queries;
  const int64_t width = block.width;
  const Head<T> upstream_head(dout, block.b, block.h);
  const Head<T> out_head(output.out, block.b, block.h);
  const Head<T> dq_head(gradients.dq, block.b, block.h);
  const Panel upstream = widen(upstream_head, first, queries, scratch.upstream);
  const Panel dq = accumulator(dq_head, first, scratch.out);
  const float* logsumexp = block.logsumexp(output);
  std::array<float, kQueries> delta{};
  for (int64_t r = 0; r < queries; ++r) {
    delta[r] = dot(upstream_head.row(first + r), out_head.row(first + r), width);
  }
  for (int64_t c = block.first_key; c < block.last_key; c += kKeys) {
    const auto [keys, k, v, beta] = block.tile(c);
    product('N', 'T', {queries, keys, width}, upstream, v, 0.0F, scratch.gradients);
    for (int64_t r = 0; r < queries; ++r) {
      softmax_backward_row(
          scratch.scores.data + r * kKeys,
          scratch.gradients.data + r * kKeys,
          p.dropout.p > 0 ? scratch.factors + r * keys : nullptr,
          block.sight.keys(first + r, c, keys),
          keys,
          static_cast<float>(p.scale),
          logsumexp[r],
          delta[r]);
    }
    const Panel dk_tile{dk.data + c * dk.stride, dk.stride};
    const Panel dv_tile{dv.data + c * dv.stride, dv.stride};
    product('N', 'N', {queries, width, keys}, scratch.gradients, k, beta, dq);
    product('T', 'N', {keys, width, queries}, scratch.gradients, block.q, 1.0F, dk_tile);
    product('T', 'N', {keys, width, queries}, scratch.scores, upstream, 1.0F, dv_tile);
  }
  write_rows(dq, nullptr, dq_head, first, queries);
}

// All that touches one key/value head, so that its gradients add up in a fixed order.
template <typename T>
void backward_group(
    const AttentionProblem& p,
    const at::Tensor& dout,
    const AttentionOutput& output,
    const AttentionGradients& gradients,
    int64_t b,
    int64_t kv_head,
    const Scratch& scratch) {
  const int64_t group = p.q.size(2) / p.k.size(2);
  const int64_t keys = p.k.size(1);
  const Head<T> dk_head(gradients.dk, b, kv_head);
  const Head<T> dv_head(gradients.dv, b, kv_head);
  const Panel dk = accumulator(dk_head, 0, scratch.dk);
  const Panel dv = accumulator(dv_head, 0, scratch.dv);
  zero_rows(dk, keys, dk_head.width);
  zero_rows(dv, keys, dv_head.width);
  for (int64_t h = kv_head * group; h < (kv_head + 1) * group; ++h) {
    for (int64_t first = 0; first < p.q.size(1); first += kQueries) {
      backward_block<T>({p, b, h, first, scratch}, dout, output, gradients, dk, dv);
    }
  }
  write_rows(dk, nullptr, dk_head, 0, keys);
  write_rows(dv, nullptr, dv_head, 0, keys);
}

at::Tensor thread_scratch(int64_t width, int64_t keys) {
  return at::empty({at::get_num_threads(), Scratch::size(width, keys)}, at::kFloat);
}

Scratch scratch_of_this_thread(const at::Tensor& all, int64_t width, int64_t keys) {
  return {all.data_ptr<float>() + at::get_thread_num() * all.stride(0), width, keys};
}

void forward_blocked(const AttentionProblem& p, const AttentionOutput& output) {
  const int64_t width = p.q.size(3);
  const int64_t heads = p.q.size(2);
  const int64_t blocks = (p.q.size(1) + kQueries - 1) / kQueries;
  const at::Tensor scratch = thread_scratch(width, 0);
  with_type(p.q.scalar_type(), [&](auto type) {
    at::parallel_for(0, p.q.size(0) * heads * blocks, 1, [&](int64_t begin, int64_t end) {
      const Scratch own = scratch_of_this_thread(scratch, width, 0);
      for (int64_t task = begin; task < end; ++task) {
        // A causal block costs more the later it is; taking them from both ends in turn evens out
        // contiguous shares.
        const int64_t j = task % blocks;
        const int64_t block = j % 2 == 0 ? j / 2 : blocks - 1 - j / 2;
        const int64_t head = task / blocks;
        forward_block<decltype(type)>(
            {p, head / heads, head % heads, block * kQueries, own}, output);
      }
    });
  });
}

void backward_blocked(
    const AttentionProblem& p,
    const at::Tensor& dout,
    const AttentionOutput& output,
    const AttentionGradients& gradients) {
  const int64_t width = p.q.size(3);
  const int64_t heads = p.k.size(2);
  const int64_t kept_keys = p.q.scalar_type() == at::kFloat ? 0 : p.k.size(1);
  const at::Tensor scratch = thread_scratch(width, kept_keys);
  with_type(p.q.scalar_type(), [&](auto type) {
    at::parallel_for(0, p.q.size(0) * heads, 1, [&](int64_t begin, int64_t end) {
      const Scratch own = scratch_of_this_thread(scratch, width, kept_keys);
      for (int64_t task = begin; task < end; ++task) {
        backward_group<decltype(type)>(p, dout, output, gradients, task / heads, task % heads, own);
      }
    });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(forward_blocked);
HWY_EXPORT(backward_blocked);

} // namespace

void attention_forward_blocked(const AttentionProblem& problem, const AttentionOutput& output) {
  onednn::prepare_sgemm();
  HWY_DYNAMIC_DISPATCH(forward_blocked)(problem, output);
}

void attention_backward_blocked(
    const AttentionProblem& problem,
    const at::Tensor& dout,
    const AttentionOutput& output,
    const AttentionGradients& gradients) {
  onednn::prepare_sgemm();
  HWY_DYNAMIC_DISPATCH(backward_blocked)(problem, dout, output, gradients);
}

} // namespace palimpsest::kernels
#endif
