// Vector helpers for the kernels' sources, compiled once per instruction set by Highway (hence no
// #pragma once: the guard toggles with the target).
//
//   const hn::ScalableTag<float> d;
//   for_each_vector(n, [&](int64_t i, size_t count) {
//     store(d, hn::Mul(load(d, x + i, count), factor), y + i, count);
//   });
//
// Memory holds float, bf16 or fp16, arithmetic is in float. `count` is the lanes in use: fewer than a
// vector in the last step, where the rest read as 0 and are not written. Tails go through the same
// instructions as full vectors, so a result does not depend on where a range was cut.

#if defined(PALIMPSEST_SIMD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_SIMD_INL_H_
#undef PALIMPSEST_SIMD_INL_H_
#else
#define PALIMPSEST_SIMD_INL_H_
#endif

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>
#include <hwy/highway.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using FloatTag = hn::ScalableTag<float>;
using FloatVector = hn::Vec<FloatTag>;
using HalfWordTag = hn::Rebind<uint16_t, FloatTag>;
using WordTag = hn::Rebind<uint32_t, FloatTag>;

HWY_INLINE FloatVector load_full(FloatTag d, const float* p) {
  return hn::LoadU(d, p);
}

HWY_INLINE FloatVector load_full(FloatTag d, const c10::BFloat16* p) {
  const auto bits = hn::LoadU(HalfWordTag(), reinterpret_cast<const uint16_t*>(p));
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(WordTag(), bits)));
}

HWY_INLINE void store_full(FloatTag d, FloatVector v, float* p) {
  hn::StoreU(v, d, p);
}

// Rounds to nearest, ties to even; a NaN becomes the quiet NaN 0x7FC0, as c10 does.
HWY_INLINE FloatVector round_to_bf16(FloatTag d, FloatVector v) {
  const WordTag words;
  const auto bits = hn::BitCast(words, v);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(words, 1U));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(words, 0x7FFFU)));
  const auto kept = hn::BitCast(d, hn::And(rounded, hn::Set(words, 0xFFFF0000U)));
  return hn::IfThenElse(hn::IsNaN(v), hn::BitCast(d, hn::Set(words, 0x7FC00000U)), kept);
}

HWY_INLINE void store_full(FloatTag d, FloatVector v, c10::BFloat16* p) {
  const auto bits = hn::ShiftRight<16>(hn::BitCast(WordTag(), round_to_bf16(d, v)));
  hn::StoreU(
      hn::DemoteTo(HalfWordTag(), hn::BitCast(hn::RebindToSigned<WordTag>(), bits)),
      HalfWordTag(),
      reinterpret_cast<uint16_t*>(p));
}

// fp16: by the processor where it converts as c10 does, else a lane at a time.
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_SSE2
HWY_INLINE FloatVector load_full(FloatTag d, const c10::Half* p) {
  HWY_ALIGN float lanes[hn::MaxLanes(FloatTag())];
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    lanes[i] = static_cast<float>(p[i]);
  }
  return hn::Load(d, lanes);
}

HWY_INLINE void store_full(FloatTag d, FloatVector v, c10::Half* p) {
  HWY_ALIGN float lanes[hn::MaxLanes(FloatTag())];
  hn::Store(v, d, lanes);
  for (size_t i = 0; i < hn::Lanes(d); ++i) {
    p[i] = lanes[i];
  }
}

HWY_INLINE FloatVector round_to_fp16(FloatTag d, FloatVector v) {
  c10::Half lanes[hn::MaxLanes(FloatTag())];
  store_full(d, v, lanes);
  return load_full(d, lanes);
}
#else
using HalfTag = hn::Rebind<hwy::float16_t, FloatTag>;

HWY_INLINE FloatVector load_full(FloatTag d, const c10::Half* p) {
  return hn::PromoteTo(d, hn::LoadU(HalfTag(), reinterpret_cast<const hwy::float16_t*>(p)));
}

HWY_INLINE void store_full(FloatTag /*d*/, FloatVector v, c10::Half* p) {
  hn::StoreU(hn::DemoteTo(HalfTag(), v), HalfTag(), reinterpret_cast<hwy::float16_t*>(p));
}

HWY_INLINE FloatVector round_to_fp16(FloatTag d, FloatVector v) {
  return hn::PromoteTo(d, hn::DemoteTo(HalfTag(), v));
}
#endif

template <typename T>
HWY_INLINE FloatVector load(FloatTag d, const T* p, size_t count) {
  if (HWY_LIKELY(count == hn::Lanes(d))) {
    return load_full(d, p);
  }
  HWY_ALIGN T padded[hn::MaxLanes(FloatTag())] = {};
  std::memcpy(padded, p, count * sizeof(T));
  return load_full(d, padded);
}

template <typename T>
HWY_INLINE void store(FloatTag d, FloatVector v, T* p, size_t count) {
  if (HWY_LIKELY(count == hn::Lanes(d))) {
    store_full(d, v, p);
    return;
  }
  HWY_ALIGN T padded[hn::MaxLanes(FloatTag())];
  store_full(d, v, padded);
  std::memcpy(p, padded, count * sizeof(T));
}

/// The value as it will read back after a store to T.
template <typename T>
HWY_INLINE FloatVector rounded_to(FloatTag d, FloatVector v) {
  if constexpr (std::is_same_v<T, c10::BFloat16>) {
    return round_to_bf16(d, v);
  } else if constexpr (std::is_same_v<T, c10::Half>) {
    return round_to_fp16(d, v);
  } else {
    return v;
  }
}

/// Calls f(i, lanes in use) for i = 0, lanes, 2 lanes, ... below n.
template <typename F>
HWY_INLINE void for_each_vector(int64_t n, F&& f) {
  const FloatTag d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    f(i, hn::Lanes(d));
  }
  if (i < n) {
    f(i, static_cast<size_t>(n - i));
  }
}

/// v with the lanes from `count` on set to `fill`.
HWY_INLINE FloatVector fill_rest(FloatTag d, FloatVector v, size_t count, float fill) {
  return hn::IfThenElse(hn::FirstN(d, count), v, hn::Set(d, fill));
}

/// The sum of a[i] b[i], in fp32.
template <typename A, typename B>
HWY_INLINE float dot(const A* a, const B* b, int64_t count) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
    sum = hn::MulAdd(load(d, a + i, lanes), load(d, b + i, lanes), sum);
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
