#pragma once

// Weights as codes: blocks of 64 values with one fp32 scale each, in int8 or in NF4.
//
//   at::Tensor codes = at::empty({code_bytes(CodeKind::kNf4, values.numel())}, at::kByte);
//   quantise(values, CodeKind::kNf4, codes);           // values: fp32, flat
//   dequantise(codes, CodeKind::kNf4, copy);           // copy: fp32, bf16 or fp16, flat
//
// A block's bytes, one block after the other:
//   int8: scale, then 64 signed bytes: value = code * scale, scale = the largest |value| / 127.
//         68 bytes, 8.5 bits a value; off by at most half a scale, 1/254 of the largest.
//   nf4:  scale, then 32 bytes, of which byte j has the code of value j in its low half and that of
//         value j + 32 in its high one: value = nf4_levels()[code] * scale, scale = the largest
//         |value|. 36 bytes, 4.5 bits a value; off by at most 0.152 of the largest.
// Codes are those of the nearest value; the last block is filled up with zeros. A block's codes
// depend on nothing but its values, and values that were decoded to fp32 have the codes and the
// scale that they came from.

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>

namespace palimpsest::kernels {

inline constexpr int64_t kCodeBlock = 64; ///< values

enum class CodeKind : uint8_t { kInt8, kNf4 };

constexpr int64_t code_block_bytes(CodeKind kind) {
  return 4 + (kind == CodeKind::kInt8 ? kCodeBlock : kCodeBlock / 2);
}

constexpr int64_t code_bytes(CodeKind kind, int64_t values) {
  return (values + kCodeBlock - 1) / kCodeBlock * code_block_bytes(kind);
}

/// NormalFloat's 16 levels in [-1, 1], ascending: quantiles of the standard normal distribution, 0
/// among them (QLoRA, Dettmers et al. 2023, appendix E; as bitsandbytes has them).
const std::array<float, 16>& nf4_levels();

/// `values`: flat fp32; `codes`: flat bytes, code_bytes(kind, values.numel()) of them. Returns false,
/// with `codes` of no use, where a value is not finite.
bool quantise(const at::Tensor& values, CodeKind kind, const at::Tensor& codes);

/// `values`: flat fp32, bf16 or fp16. Products in fp32, rounded to nearest.
void dequantise(const at::Tensor& codes, CodeKind kind, const at::Tensor& values);

} // namespace palimpsest::kernels
