#include <palimpsest/core/models/generator.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/linear_few_rows.h>
#include <palimpsest/core/models/attention_block.h>
#include <palimpsest/core/models/head_block.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace palimpsest {
namespace {

static_assert(kMostSequences <= kernels::kFewRows);

AttentionBlock* attention_of(const ChainBlock& entry) {
  return dynamic_cast<AttentionBlock*>(entry.block.get());
}

const HeadBlock& head_of(const Chain& chain) {
  const auto* head = dynamic_cast<const HeadBlock*>(chain.terminal.get());
  check(head != nullptr, "a chain without a decoder's head has no logits");
  return *head;
}

at::Tensor forward(Block& block, const at::Tensor& x, const BlockContext& context) {
  const Tensors inputs = {x};
  return block.forward(inputs, {.tape = TapeMode::kNone}, context).values.front();
}

/// From token ids [B,T] to hidden states [B,T,H]; `attend` computes the attention blocks.
template <typename Attend>
at::Tensor walk(
    const Chain& chain,
    const at::Tensor& ids,
    const BlockContext& context,
    Attend attend) {
  at::Tensor x = ids;
  for (size_t index = 0; index < chain.blocks.size(); ++index) {
    const ChainBlock& entry = chain.blocks[index];
    const ValueRef before{index == 0 ? kLoader : static_cast<int>(index) - 1, 0};
    check(entry.reads == std::vector{before}, "{} is not read in a row", entry.name);
    AttentionBlock* attention = attention_of(entry);
    x = attention != nullptr ? attend(*attention, x) : forward(*entry.block, x, context);
  }
  return x;
}

at::Tensor id_tensor(std::span<const int32_t> ids, int64_t rows) {
  at::Tensor tensor = at::empty({rows, std::ssize(ids) / rows}, at::kLong);
  std::ranges::copy(ids, tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

} // namespace

Generator::Generator(const Chain& chain) : chain_(chain) {
  head_of(chain);
}

KvCache Generator::new_cache(int64_t most) const {
  std::vector<LayerCache> layers;
  for (const ChainBlock& entry : chain_.blocks) {
    if (const AttentionBlock* attention = attention_of(entry)) {
      layers.emplace_back(attention->cache_shape(
          chain_.units[static_cast<size_t>(entry.units.front())]->dtype(), most));
    }
  }
  return KvCache(std::move(layers));
}

int64_t Generator::cache_bytes(int64_t tokens) const {
  int64_t bytes = 0;
  KvCache cache = new_cache(tokens);
  for (const LayerCache& layer : cache.layers()) {
    bytes += layer.shape().bytes_for(tokens);
  }
  return bytes;
}

at::Tensor Generator::hidden(
    const at::Tensor& ids,
    std::span<KvCache* const> caches,
    const std::vector<TokenPlace>& places) const {
  MicroBatch batch{.inputs = ids, .positions = at::empty(ids.sizes(), at::kLong)};
  std::ranges::transform(
      places, batch.positions.mutable_data_ptr<int64_t>(), &TokenPlace::position);
  const BlockContext context{.batch = &batch, .training = false};
  CacheStep step{.places = places};
  size_t layer = 0;
  return walk(chain_, ids, context, [&](const AttentionBlock& block, const at::Tensor& x) {
    step.caches.clear();
    for (KvCache* cache : caches) {
      step.caches.push_back(&cache->layers().at(layer));
    }
    ++layer;
    return block.extend(x, step, context);
  });
}

at::Tensor Generator::extend(KvCache& cache, std::span<const int32_t> ids) const {
  check(!ids.empty(), "a sequence is extended by nothing");
  const int64_t begin = cache.length();
  const int64_t tokens = std::ssize(ids);
  std::vector<TokenPlace> places;
  for (int64_t t = 0; t < tokens; ++t) {
    places.push_back({.position = begin + t, .length = begin + tokens});
  }
  const std::vector<KvCache*> caches = {&cache};
  const at::Tensor last = hidden(id_tensor(ids, 1), caches, places).narrow(1, tokens - 1, 1);
  return head_of(chain_).logits(last)[0].to(at::kFloat);
}

at::Tensor Generator::step(std::span<KvCache* const> caches, std::span<const int32_t> ids) const {
  check(
      !ids.empty() && ids.size() == caches.size() && std::ssize(ids) <= kMostSequences,
      "{} tokens for {} sequences",
      ids.size(),
      caches.size());
  std::vector<TokenPlace> places;
  for (const KvCache* cache : caches) {
    places.push_back({.position = cache->length(), .length = cache->length() + 1});
  }
  const at::Tensor x = hidden(id_tensor(ids, std::ssize(ids)), caches, places); // [N,1,H]
  return head_of(chain_).logits(x).select(1, 0).to(at::kFloat).contiguous();
}

at::Tensor decoder_logits(const Chain& chain, const at::Tensor& ids) {
  const MicroBatch batch{.inputs = ids};
  const BlockContext context{.batch = &batch, .training = false};
  const auto whole = [&](Block& block, const at::Tensor& x) { return forward(block, x, context); };
  return head_of(chain).logits(walk(chain, ids, context, whole));
}

} // namespace palimpsest
