#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/core/kernels/quantise.cc"
#include <palimpsest/core/kernels/simd_targets.h>

#include <hwy/foreach_target.h>

#include <palimpsest/core/kernels/dispatch.h>
#include <palimpsest/core/kernels/quantise.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

// At most 16 lanes, so that they divide half a block.
using CodeTag = hn::CappedTag<float, 16>;
using CodeWordTag = hn::Rebind<int32_t, CodeTag>;

using Block = std::array<float, kCodeBlock>;

/// False where one is not finite.
HWY_INLINE bool largest_of(const Block& values, float& largest) {
  const CodeTag d;
  auto most = hn::Zero(d);
  bool finite = true;
  for (size_t i = 0; i < values.size(); i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, values.data() + i);
    finite = finite && hn::AllTrue(d, hn::IsFinite(v));
    most = hn::Max(most, hn::Abs(v));
  }
  largest = hn::GetLane(hn::MaxOfLanes(d, most));
  return finite;
}

void encode_int8(const Block& values, float scale, int8_t* codes) {
  const CodeTag d;
  std::array<int32_t, kCodeBlock> words{};
  for (size_t i = 0; scale > 0 && i < values.size(); i += hn::Lanes(d)) {
    const auto steps = hn::Div(hn::LoadU(d, values.data() + i), hn::Set(d, scale));
    const auto within = hn::Clamp(steps, hn::Set(d, -127.0F), hn::Set(d, 127.0F));
    hn::StoreU(hn::NearestInt(within), CodeWordTag(), words.data() + i);
  }
  std::ranges::transform(words, codes, [](int32_t word) { return static_cast<int8_t>(word); });
}

// A code is the number of midpoints between levels that lie below the value.
void encode_nf4(const Block& values, float scale, const float* midpoints, uint8_t* codes) {
  const CodeTag d;
  std::array<int32_t, kCodeBlock> words{};
  for (size_t i = 0; i < values.size(); i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, values.data() + i);
    const auto y = scale > 0 ? hn::Div(v, hn::Set(d, scale)) : v;
    auto below = hn::Zero(d);
    for (size_t level = 0; level < 15; ++level) {
      const auto above = hn::Gt(y, hn::Set(d, midpoints[level]));
      below = hn::Add(below, hn::IfThenElseZero(above, hn::Set(d, 1.0F)));
    }
    hn::StoreU(hn::ConvertTo(CodeWordTag(), below), CodeWordTag(), words.data() + i);
  }
  constexpr size_t kHalf = kCodeBlock / 2;
  for (size_t i = 0; i < kHalf; ++i) {
    codes[i] = static_cast<uint8_t>(words[i] | (words[i + kHalf] << 4));
  }
}

HWY_INLINE void decode_int8(const uint8_t* codes, Block& values) {
  const CodeTag d;
  const hn::Rebind<int8_t, CodeTag> bytes;
  for (size_t i = 0; i < values.size(); i += hn::Lanes(d)) {
    const auto narrow = hn::LoadU(bytes, reinterpret_cast<const int8_t*>(codes) + i);
    hn::StoreU(hn::ConvertTo(d, hn::PromoteTo(CodeWordTag(), narrow)), d, values.data() + i);
  }
}

/// Entries of a table of 16 floats.
HWY_INLINE hn::Vec<CodeTag> looked_up(const float* table, hn::Vec<CodeWordTag> codes) {
  const CodeTag d;
  constexpr size_t kLanes = HWY_HAVE_SCALABLE ? 0 : hn::MaxLanes(CodeTag());
  if constexpr (kLanes == 16) {
    return hn::TableLookupLanes(hn::LoadU(d, table), hn::IndicesFromVec(d, codes));
  } else if constexpr (kLanes == 8) {
    const auto seven = hn::Set(CodeWordTag(), 7);
    const auto places = hn::IndicesFromVec(d, hn::And(codes, seven));
    const auto low = hn::TableLookupLanes(hn::LoadU(d, table), places);
    const auto high = hn::TableLookupLanes(hn::LoadU(d, table + 8), places);
    return hn::IfThenElse(hn::RebindMask(d, hn::Gt(codes, seven)), high, low);
  } else {
    return hn::GatherIndex(d, table, codes);
  }
}

HWY_INLINE void decode_nf4(const uint8_t* codes, const float* levels, Block& values) {
  constexpr size_t kHalf = kCodeBlock / 2;
  const CodeTag d;
  const hn::Rebind<uint8_t, CodeTag> bytes;
  for (size_t i = 0; i < kHalf; i += hn::Lanes(d)) {
    const auto pair = hn::PromoteTo(CodeWordTag(), hn::LoadU(bytes, codes + i));
    const auto low = hn::And(pair, hn::Set(CodeWordTag(), 15));
    hn::StoreU(looked_up(levels, low), d, values.data() + i);
    hn::StoreU(looked_up(levels, hn::ShiftRight<4>(pair)), d, values.data() + kHalf + i);
  }
}

/// A 127th, or the number next to it where times 127 it would not give itself again.
HWY_INLINE float lasting_scale(float largest) {
  const float scale = largest / 127;
  return scale * 127 / 127 == scale ? scale : std::nextafter(scale, largest);
}

/// What one call works on.
struct Encoding {
  CodeKind kind;
  const float* values;
  int64_t count; // of values
  const float* midpoints;
  uint8_t* codes;
};

/// False where a value is not finite.
bool encode_blocks(const Encoding& p, int64_t begin, int64_t end) {
  for (int64_t number = begin; number < end; ++number) {
    const int64_t first = number * kCodeBlock;
    Block block{};
    std::copy_n(p.values + first, std::min(kCodeBlock, p.count - first), block.begin());
    float scale = 0;
    if (!largest_of(block, scale)) {
      return false;
    }
    scale = p.kind == CodeKind::kInt8 ? lasting_scale(scale) : scale;
    uint8_t* out = p.codes + number * code_block_bytes(p.kind);
    std::memcpy(out, &scale, sizeof(scale));
    out += sizeof(scale);
    if (p.kind == CodeKind::kInt8) {
      encode_int8(block, scale, reinterpret_cast<int8_t*>(out));
    } else {
      encode_nf4(block, scale, p.midpoints, out);
    }
  }
  return true;
}

template <typename T>
struct Decoding {
  CodeKind kind;
  const uint8_t* codes;
  const float* levels;
  int64_t count; // of values
  T* values;
};

template <typename T>
void decode_blocks(const Decoding<T>& p, int64_t begin, int64_t end) {
  const FloatTag d;
  Block block{};
  for (int64_t number = begin; number < end; ++number) {
    const uint8_t* in = p.codes + number * code_block_bytes(p.kind);
    float scale = 0;
    std::memcpy(&scale, in, sizeof(scale));
    in += sizeof(scale);
    if (p.kind == CodeKind::kInt8) {
      decode_int8(in, block);
    } else {
      decode_nf4(in, p.levels, block);
    }
    const int64_t first = number * kCodeBlock;
    const auto factor = hn::Set(d, scale);
    for_each_vector(std::min(kCodeBlock, p.count - first), [&](int64_t i, size_t count) HWY_ATTR {
      const auto v = hn::Mul(load(d, block.data() + i, count), factor);
      store(d, v, p.values + first + i, count);
    });
  }
}

constexpr int64_t kGrain = 1024; // blocks

bool quantise_fast(
    const at::Tensor& values,
    CodeKind kind,
    const float* midpoints,
    const at::Tensor& codes) {
  const Encoding problem{
      .kind = kind,
      .values = values.const_data_ptr<float>(),
      .count = values.numel(),
      .midpoints = midpoints,
      .codes = codes.data_ptr<uint8_t>()};
  std::atomic<bool> finite = true;
  const int64_t blocks = codes.numel() / code_block_bytes(kind);
  at::parallel_for(0, blocks, kGrain, [&](int64_t begin, int64_t end) {
    if (!encode_blocks(problem, begin, end)) {
      finite = false;
    }
  });
  return finite;
}

void dequantise_fast(
    const at::Tensor& codes,
    CodeKind kind,
    const float* levels,
    const at::Tensor& values) {
  const int64_t blocks = codes.numel() / code_block_bytes(kind);
  with_type(values.scalar_type(), [&](auto type) {
    using T = decltype(type);
    const Decoding<T> problem{
        .kind = kind,
        .codes = codes.const_data_ptr<uint8_t>(),
        .levels = levels,
        .count = values.numel(),
        .values = values.data_ptr<T>()};
    at::parallel_for(
        0, blocks, kGrain, [&](int64_t begin, int64_t end) { decode_blocks(problem, begin, end); });
  });
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest::kernels {

namespace {

HWY_EXPORT(quantise_fast);
HWY_EXPORT(dequantise_fast);

void check_arguments(const at::Tensor& codes, CodeKind kind, const at::Tensor& values) {
  check(
      codes.is_cpu() && codes.is_contiguous() && codes.scalar_type() == at::kByte &&
          is_fast(values) && codes.numel() == code_bytes(kind, values.numel()),
      "{} bytes of codes do not fit {} values of {}",
      codes.numel(),
      values.numel(),
      c10::toString(values.scalar_type()));
}

} // namespace

const std::array<float, 16>& nf4_levels() {
  static constexpr std::array<float, 16> kLevels = {
      -1.0F,
      -0.6961928009986877F,
      -0.5250730514526367F,
      -0.39491748809814453F,
      -0.28444138169288635F,
      -0.18477343022823334F,
      -0.09105003625154495F,
      0.0F,
      0.07958029955625534F,
      0.16093020141124725F,
      0.24611230194568634F,
      0.33791524171829224F,
      0.44070982933044434F,
      0.5626170039176941F,
      0.7229568362236023F,
      1.0F};
  return kLevels;
}

bool quantise(const at::Tensor& values, CodeKind kind, const at::Tensor& codes) {
  check_arguments(codes, kind, values);
  check(values.scalar_type() == at::kFloat, "codes are made of fp32 values");
  std::array<float, 15> midpoints{};
  for (size_t level = 0; level < midpoints.size(); ++level) {
    midpoints[level] = (nf4_levels()[level] + nf4_levels()[level + 1]) / 2;
  }
  return HWY_DYNAMIC_DISPATCH(quantise_fast)(values, kind, midpoints.data(), codes);
}

void dequantise(const at::Tensor& codes, CodeKind kind, const at::Tensor& values) {
  check_arguments(codes, kind, values);
  HWY_DYNAMIC_DISPATCH(dequantise_fast)(codes, kind, nf4_levels().data(), values);
}

} // namespace palimpsest::kernels
#endif
