#include <palimpsest/core/models/rotary_cache.h>

#include <algorithm>

namespace palimpsest {

const kernels::RotaryTable& RotaryCache::table(int64_t length) {
  const bool by_length =
      rope_.type == RopeType::kDynamic && std::max(length, length_) > max_position_embeddings_;
  if (!table_.has_value() || (by_length ? length != length_ : length > length_)) {
    const RopeTable rope = rope_table(rope_, head_dim_, max_position_embeddings_, length);
    table_.emplace(rope.inverse_frequencies, static_cast<float>(rope.attention_scaling), length);
    length_ = length;
  }
  return *table_;
}

} // namespace palimpsest
