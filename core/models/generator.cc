#include <palimpsest/core/models/generator.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/kernels/linear_few_rows.h>
#include <palimpsest/core/models/attention_block.h>
#include <palimpsest/core/models/head_block.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string>

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
/// `around(entry, x, compute)` gives a block's values.
template <typename Attend, typename Around>
at::Tensor walk(
    const Chain& chain,
    const at::Tensor& ids,
    const BlockContext& context,
    Attend attend,
    Around around) {
  at::Tensor x = ids;
  for (size_t index = 0; index < chain.blocks.size(); ++index) {
    const ChainBlock& entry = chain.blocks[index];
    const ValueRef before{index == 0 ? kLoader : static_cast<int>(index) - 1, 0};
    check(entry.reads == std::vector{before}, "{} is not read in a row", entry.name);
    AttentionBlock* attention = attention_of(entry);
    x = around(entry, x, [&] {
      return attention != nullptr ? attend(*attention, x) : forward(*entry.block, x, context);
    });
  }
  return x;
}

at::Tensor id_tensor(std::span<const int32_t> ids, int64_t rows) {
  at::Tensor tensor = at::empty({rows, std::ssize(ids) / rows}, at::kLong);
  std::ranges::copy(ids, tensor.mutable_data_ptr<int64_t>());
  return tensor;
}

/// Zeros of `held` tokens, and room for those that come. A window's are given as one by one, nearly:
/// it holds no more than in earnest.
void hold_zeros(LayerCache& cache, int64_t held, int64_t coming) {
  const CacheShape& shape = cache.shape();
  const at::Tensor zero = at::zeros({1, 1, 1}, shape.dtype);
  const int64_t all = held + coming;
  const int64_t piece =
      held == 0 || shape.window == 0 ? all : std::max(int64_t{1}, shape.window - 1);
  while (cache.length() < all) {
    const int64_t tokens = std::min(piece, all - cache.length());
    const at::Tensor part = zero.expand({tokens, shape.kv_heads, shape.head_dim});
    cache.append(part, part);
  }
  cache.truncate(held);
}

} // namespace

/// Watches what a computation takes, block by block: the parameters of one are there at a time.
class Generator::Rehearsal {
 public:
  using Compute = std::function<at::Tensor()>;

  Rehearsal(const Chain& chain, MemoryContext& memory)
      : chain_(chain), memory_(memory), here_(memory) {}
  Rehearsal(const Rehearsal&) = delete;
  ~Rehearsal() {
    unbind();
  }

  /// From here on everything counts.
  void begin() {
    before_ = memory_.total().live;
    most_ = 0;
  }
  at::Tensor block(const ChainBlock& entry, const at::Tensor& x, const Compute& compute) {
    return is_new(entry) ? watched(entry.units, compute) : x;
  }
  at::Tensor watched(const std::vector<int>& units, const Compute& compute) {
    const int64_t unbound = bind(units);
    memory_.begin_interval();
    at::Tensor y = compute();
    most_ = std::max(most_, memory_.interval_peak() - before_ - unbound);
    unbind();
    return y;
  }
  /// Whether a block stands for its kind: the first one does.
  bool is_new(const ChainBlock& entry) {
    std::string key = entry.block->kind();
    for (const int index : entry.units) {
      const ParamUnit& unit = *chain_.units[static_cast<size_t>(index)];
      key += unit.codec() != nullptr ? unit.codec()->name() : "";
    }
    const auto [known, is_new] = first_.emplace(std::move(key), &entry);
    return is_new || known->second == &entry;
  }
  int64_t most() const {
    return most_;
  }

 private:
  /// Bytes of the units that were not bound.
  int64_t bind(const std::vector<int>& units) {
    int64_t bytes = 0;
    for (const int index : units) {
      ParamUnit& unit = *chain_.units[static_cast<size_t>(index)];
      if (!unit.data().defined()) {
        unit.bind_data(at::zeros({unit.held(unit.numel())}, unit.held_dtype()));
        bound_.push_back(&unit);
        bytes += unit.held_bytes();
      }
    }
    return bytes;
  }
  void unbind() {
    for (ParamUnit* unit : bound_) {
      unit->bind_data({});
    }
    bound_.clear();
  }

  const Chain& chain_;
  MemoryContext& memory_;
  ScopedContext here_;
  std::map<std::string, const ChainBlock*> first_;
  std::vector<ParamUnit*> bound_;
  int64_t before_ = 0;
  int64_t most_ = 0;
};

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

int64_t Generator::most_cache_bytes(const Length& length) const {
  int64_t bytes = 0;
  KvCache cache = new_cache(std::max(length.tokens, length.most));
  for (const LayerCache& layer : cache.layers()) {
    const CacheShape& shape = layer.shape();
    bytes += shape.bytes_per_token() * shape.growth(length.prompt, length.tokens).room;
  }
  return bytes;
}

int64_t Generator::most_scratch_bytes(
    const std::vector<Length>& sequences,
    int64_t together,
    MemoryContext& memory) const {
  Rehearsal rehearsal(chain_, memory);
  const auto cache_with = [&](int64_t held, int64_t coming) {
    KvCache cache = new_cache(held + coming);
    size_t layer = 0;
    for (const ChainBlock& entry : chain_.blocks) {
      if (attention_of(entry) == nullptr) {
        continue;
      }
      LayerCache& kept = cache.layers()[layer++];
      if (rehearsal.is_new(entry)) {
        hold_zeros(kept, held, coming);
      }
    }
    return cache;
  };
  {
    const int64_t prompt = std::ranges::max(sequences, {}, &Length::prompt).prompt;
    KvCache cache = cache_with(0, prompt);
    const std::vector<int32_t> ids(static_cast<size_t>(prompt), 0);
    rehearsal.begin();
    extend(cache, ids, &rehearsal);
  }
  const int64_t of_prompt = rehearsal.most();
  std::vector<Length> longest = sequences;
  std::erase_if(longest, [](const Length& one) { return one.tokens <= one.prompt; });
  std::ranges::sort(longest, std::greater(), &Length::tokens);
  longest.resize(std::min(longest.size(), static_cast<size_t>(together)));
  if (longest.empty()) {
    return of_prompt;
  }
  std::vector<KvCache> caches;
  std::vector<KvCache*> pointers;
  int64_t outgrown = 0; // keys or values of a layer whose larger place is there already
  for (const Length& one : longest) {
    caches.push_back(cache_with(one.tokens - 1, 1));
    KvCache whole = new_cache(std::max(one.tokens, one.most));
    for (const LayerCache& layer : whole.layers()) {
      const CacheShape& shape = layer.shape();
      const int64_t tokens = shape.growth(one.prompt, one.tokens).outgrown;
      outgrown = std::max(outgrown, tokens * shape.bytes_per_token() / 2);
    }
  }
  std::ranges::transform(caches, std::back_inserter(pointers), [](KvCache& one) { return &one; });
  const std::vector<int32_t> ids(longest.size(), 0);
  rehearsal.begin();
  step(pointers, ids, &rehearsal);
  return std::max(of_prompt, rehearsal.most() + outgrown);
}

at::Tensor Generator::hidden(
    const at::Tensor& ids,
    std::span<KvCache* const> caches,
    const std::vector<TokenPlace>& places,
    Rehearsal* rehearsal) const {
  MicroBatch batch{.inputs = ids, .positions = at::empty(ids.sizes(), at::kLong)};
  std::ranges::transform(
      places, batch.positions.mutable_data_ptr<int64_t>(), &TokenPlace::position);
  const BlockContext context{.batch = &batch, .training = false};
  CacheStep step{.places = places};
  size_t layer = 0;
  const auto attend = [&](const AttentionBlock& block, const at::Tensor& x) {
    step.caches.clear();
    for (KvCache* cache : caches) {
      step.caches.push_back(&cache->layers().at(layer));
    }
    return block.extend(x, step, context);
  };
  const auto around = [&](const ChainBlock& entry, const at::Tensor& x, const auto& compute) {
    const at::Tensor y = rehearsal == nullptr ? compute() : rehearsal->block(entry, x, compute);
    layer += attention_of(entry) != nullptr ? 1 : 0;
    return y;
  };
  return walk(chain_, ids, context, attend, around);
}

/// fp32 [N,V] of hidden states [N,1,H].
at::Tensor Generator::scores(const at::Tensor& x, Rehearsal* rehearsal) const {
  const auto compute = [&] {
    return head_of(chain_).logits(x).select(1, 0).to(at::kFloat).contiguous();
  };
  return rehearsal == nullptr ? compute() : rehearsal->watched(chain_.terminal_units, compute);
}

at::Tensor Generator::extend(KvCache& cache, std::span<const int32_t> ids) const {
  return extend(cache, ids, nullptr);
}

at::Tensor Generator::extend(KvCache& cache, std::span<const int32_t> ids, Rehearsal* rehearsal)
    const {
  check(!ids.empty(), "a sequence is extended by nothing");
  const int64_t begin = cache.length();
  const int64_t tokens = std::ssize(ids);
  std::vector<TokenPlace> places;
  for (int64_t t = 0; t < tokens; ++t) {
    places.push_back({.position = begin + t, .length = begin + tokens});
  }
  const std::vector<KvCache*> caches = {&cache};
  const at::Tensor x = hidden(id_tensor(ids, 1), caches, places, rehearsal);
  return scores(x.narrow(1, tokens - 1, 1), rehearsal);
}

at::Tensor Generator::step(std::span<KvCache* const> caches, std::span<const int32_t> ids) const {
  return step(caches, ids, nullptr);
}

at::Tensor Generator::step(
    std::span<KvCache* const> caches,
    std::span<const int32_t> ids,
    Rehearsal* rehearsal) const {
  check(
      !ids.empty() && ids.size() == caches.size() && std::ssize(ids) <= kMostSequences,
      "{} tokens for {} sequences",
      ids.size(),
      caches.size());
  std::vector<TokenPlace> places;
  for (const KvCache* cache : caches) {
    places.push_back({.position = cache->length(), .length = cache->length() + 1});
  }
  return scores(hidden(id_tensor(ids, std::ssize(ids)), caches, places, rehearsal), rehearsal);
}

at::Tensor decoder_logits(const Chain& chain, const at::Tensor& ids) {
  const MicroBatch batch{.inputs = ids};
  const BlockContext context{.batch = &batch, .training = false};
  const auto whole = [&](Block& block, const at::Tensor& x) { return forward(block, x, context); };
  const auto around = [](const ChainBlock&, const at::Tensor&, const auto& compute) {
    return compute();
  };
  return head_of(chain).logits(walk(chain, ids, context, whole, around));
}

} // namespace palimpsest
