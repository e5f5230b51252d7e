#pragma once

// How a frozen unit's parameters are held where not as blocks read them: in another type, or in
// blocks of codes with a scale each.
//
//   const auto codec = kernels::frozen_codec("nf4", at::kBFloat16);      // core/kernels/quantise.h
//   at::Tensor held = at::empty({codec->held(4096)}, codec->dtype());    // 2,304 bytes
//   codec->encode(values, held);                                         // values: fp32 [4096]
//   codec->decode(held, copy);                                           // copy: bf16 [4096]
//
// Elements are coded in blocks; a parameter begins with one, so that a unit can be cut between any
// two blocks and each part coded by itself.

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

namespace palimpsest {

class ParamCodec {
 public:
  virtual ~ParamCodec() = default;

  /// "nf4"
  virtual std::string_view name() const = 0;
  /// Elements of a block. kShardChunk is a multiple of it.
  virtual int64_t block() const = 0;
  /// Of what is held: kByte where it is codes.
  virtual at::ScalarType dtype() const = 0;
  /// Entries of that type for a block.
  virtual int64_t entries() const = 0;

  /// `values` flat fp32, of which the last block may be a part; `held` flat, held(values.numel())
  /// entries. False where a value has no code: NaN, infinity, what is beyond the type's range.
  virtual bool encode(const at::Tensor& values, const at::Tensor& held) const = 0;
  /// `values` flat, fp32 or a narrower type, rounded to nearest.
  virtual void decode(const at::Tensor& held, const at::Tensor& values) const = 0;

  /// Entries for so many elements.
  int64_t held(int64_t elements) const {
    return (elements + block() - 1) / block() * entries();
  }
};

} // namespace palimpsest
