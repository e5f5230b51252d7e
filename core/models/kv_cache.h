#pragma once

// The keys and values of one sequence that is being generated, so that a new token costs one token.
//
//   LayerCache layer({.kv_heads = 4, .head_dim = 64, .window = 0, .dtype = at::kFloat, .most = 2048});
//   layer.append(k, v);                      // [T,4,64] each, k rotated
//   layer.seen(/*queries=*/T);               // what those T tokens see, themselves included
//
// A layer with a sliding window forgets what no later token sees: it holds fewer than twice the
// window, or what one append brought. Memory grows with the sequence, by doubling up to what it may
// become, and is charged as activations.

#include <palimpsest/core/kernels/decode_attention.h>

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace palimpsest {

struct CacheShape {
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t window = 0; // how many keys a token sees, its own among them; 0: all
  at::ScalarType dtype = at::kFloat;
  int64_t most = 0; // tokens that the sequence may have

  /// Of a token's keys and values.
  int64_t bytes_per_token() const {
    return 2 * kv_heads * head_dim * static_cast<int64_t>(c10::elementSize(dtype));
  }
  /// What a sequence that grows to so many tokens keeps in the end, at most.
  int64_t bytes_for(int64_t tokens) const {
    return bytes_per_token() * (window == 0 ? tokens : std::min(tokens, 2 * window));
  }
  /// Of `held` tokens those that a later one sees.
  int64_t kept_of(int64_t held) const {
    return window == 0 ? held : std::min(held, window - 1);
  }
  /// Tokens that room is made for where `kept` stay and `coming` follow: twice as many as stay, up
  /// to `most`.
  int64_t room_for(int64_t kept, int64_t coming) const {
    return std::max(kept + coming, std::min(std::max(2 * kept, kLeastRoom), most));
  }
  /// How a sequence's room grows, in tokens.
  struct Growth {
    int64_t room = 0; // the largest
    int64_t outgrown = 0; // the largest that a new one took the place of
  };
  /// Of a sequence of so many tokens, of which the first `prompt` come at once and the others one by
  /// one.
  Growth growth(int64_t prompt, int64_t tokens) const;
  /// Tokens that are made room for at first, unless the sequence has fewer.
  static constexpr int64_t kLeastRoom = 64;
};

class LayerCache {
 public:
  explicit LayerCache(const CacheShape& shape) : shape_(shape) {}

  /// The next T tokens' keys and values, [T,Hkv,D] each.
  void append(const at::Tensor& k, const at::Tensor& v);
  /// Keys and values [S,Hkv,D] of which the last `queries` tokens see any; views until the next
  /// append.
  kernels::KeysAndValues seen(int64_t queries) const;

  /// Forgets what follows the first `length` tokens. False, and nothing is done, where the window
  /// has forgotten what would be needed then.
  bool truncate(int64_t length);
  void clear() {
    first_ = held_ = 0;
  }
  const CacheShape& shape() const {
    return shape_;
  }
  /// Tokens appended.
  int64_t length() const {
    return first_ + held_;
  }
  int64_t bytes() const;

 private:
  void make_room(int64_t tokens);
  int64_t capacity() const {
    return k_.defined() ? k_.size(1) : 0;
  }

  CacheShape shape_;
  at::Tensor k_; // [Hkv, capacity, D]: the keys of a head are neighbours
  at::Tensor v_;
  int64_t first_ = 0; // the token of the first key held
  int64_t held_ = 0;
};

/// Of one sequence: all layers, in the chain's order.
class KvCache {
 public:
  explicit KvCache(std::vector<LayerCache> layers) : layers_(std::move(layers)) {}

  std::vector<LayerCache>& layers() {
    return layers_;
  }
  int64_t length() const {
    return layers_.empty() ? 0 : layers_.front().length();
  }
  int64_t bytes() const;
  /// Keeps the first `length` tokens, or none where a window has forgotten what they need. Returns
  /// how many are left.
  int64_t truncate(int64_t length);

 private:
  std::vector<LayerCache> layers_;
};

} // namespace palimpsest
