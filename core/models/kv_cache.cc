#include <palimpsest/core/models/kv_cache.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/memory_context.h>

#include <ATen/ops/empty.h>

#include <algorithm>

namespace palimpsest {

CacheShape::Growth CacheShape::growth(int64_t prompt, int64_t tokens) const {
  int64_t room = room_for(0, prompt);
  Growth growth{.room = room};
  for (int64_t length = room; length < tokens;) { // it is full at that length
    const int64_t kept = kept_of(room);
    const int64_t next = room_for(kept, 1);
    growth.room = std::max(growth.room, next);
    growth.outgrown = std::max(growth.outgrown, room);
    if (next == room) {
      break; // a window's, from here on always the same
    }
    length += next - kept;
    room = next;
  }
  return growth;
}

void LayerCache::append(const at::Tensor& k, const at::Tensor& v) {
  const int64_t tokens = k.size(0);
  check(
      k.sizes() == at::IntArrayRef({tokens, shape_.kv_heads, shape_.head_dim}) &&
          v.sizes() == k.sizes(),
      "a cache of {} heads of {} is given keys of {} elements",
      shape_.kv_heads,
      shape_.head_dim,
      k.numel());
  check(
      length() + tokens <= shape_.most,
      "a cache for {} tokens is given {}",
      shape_.most,
      length() + tokens);
  if (held_ + tokens > capacity()) {
    make_room(tokens);
  }
  k_.narrow(1, held_, tokens).copy_(k.transpose(0, 1));
  v_.narrow(1, held_, tokens).copy_(v.transpose(0, 1));
  held_ += tokens;
}

void LayerCache::make_room(int64_t tokens) {
  const int64_t kept = shape_.kept_of(held_);
  const int64_t room = shape_.room_for(kept, tokens);
  for (at::Tensor* part : {&k_, &v_}) {
    at::Tensor larger =
        at::empty({shape_.kv_heads, room, shape_.head_dim}, at::TensorOptions(shape_.dtype));
    retag(larger.storage(), Category::kActivations);
    if (kept > 0) {
      larger.narrow(1, 0, kept).copy_(part->narrow(1, held_ - kept, kept));
    }
    *part = std::move(larger);
  }
  first_ += held_ - kept;
  held_ = kept;
}

kernels::KeysAndValues LayerCache::seen(int64_t queries) const {
  const int64_t most = shape_.window == 0 ? held_ : shape_.window + queries - 1;
  const int64_t count = std::min(held_, most);
  const auto last = [&](const at::Tensor& part) {
    return part.narrow(1, held_ - count, count).transpose(0, 1);
  };
  return {last(k_), last(v_)};
}

bool LayerCache::truncate(int64_t length) {
  const int64_t left = length - first_;
  if (length >= this->length()) {
    return true;
  }
  if (first_ > 0 && left < shape_.window - 1) {
    return false;
  }
  held_ = left;
  return true;
}

int64_t LayerCache::bytes() const {
  return capacity() * shape_.bytes_per_token();
}

int64_t KvCache::bytes() const {
  int64_t bytes = 0;
  for (const LayerCache& layer : layers_) {
    bytes += layer.bytes();
  }
  return bytes;
}

int64_t KvCache::truncate(int64_t length) {
  const bool kept =
      std::ranges::all_of(layers_, [&](LayerCache& layer) { return layer.truncate(length); });
  if (!kept) {
    for (LayerCache& layer : layers_) {
      layer.clear();
    }
  }
  return this->length();
}

} // namespace palimpsest
