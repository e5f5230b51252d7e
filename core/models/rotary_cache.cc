#include <palimpsest/core/models/rotary_cache.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <cmath>

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

kernels::RotaryTable RotaryCache::rows(std::span<const TokenPlace> places) const {
  const int64_t half = head_dim_ / 2;
  const at::Tensor cos = at::empty({std::ssize(places), half}, at::kFloat);
  const at::Tensor sin = at::empty_like(cos);
  RopeTable rope;
  int64_t made_for = -1; // the length that the frequencies are of
  for (int64_t row = 0; row < std::ssize(places); ++row) {
    const auto [position, length] = places[static_cast<size_t>(row)];
    if (made_for < 0 || (rope_.type == RopeType::kDynamic && length != made_for)) {
      rope = rope_table(rope_, head_dim_, max_position_embeddings_, length);
      made_for = length;
    }
    const auto scaling = static_cast<float>(rope.attention_scaling);
    for (int64_t i = 0; i < half; ++i) {
      const float angle =
          static_cast<float>(position) * rope.inverse_frequencies[static_cast<size_t>(i)];
      cos.mutable_data_ptr<float>()[row * half + i] = std::cos(angle) * scaling;
      sin.mutable_data_ptr<float>()[row * half + i] = std::sin(angle) * scaling;
    }
  }
  return {cos, sin};
}

} // namespace palimpsest
