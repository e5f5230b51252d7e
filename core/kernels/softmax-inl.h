// What softmaxes of a row of scores are made of, for the kernels' sources; compiled once per
// instruction set by Highway, as simd-inl.h is. Apart from that since Highway's math takes long to
// compile.
//
//   const float sum = exponentials(scores, count, scale, scale * largest(scores, count));

#if defined(PALIMPSEST_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_SOFTMAX_INL_H_
#undef PALIMPSEST_SOFTMAX_INL_H_
#else
#define PALIMPSEST_SOFTMAX_INL_H_
#endif

#include <palimpsest/core/kernels/simd-inl.h>

#include <hwy/contrib/math/math-inl.h>

#include <limits>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

template <typename T>
HWY_INLINE float largest(const T* values, int64_t count) {
  constexpr float kLowest = -std::numeric_limits<float>::infinity();
  const FloatTag d;
  auto top = hn::Set(d, kLowest);
  for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
    top = hn::Max(top, fill_rest(d, load(d, values + i, lanes), lanes, kLowest));
  });
  return hn::GetLane(hn::MaxOfLanes(d, top));
}

/// values = exp(values * scale - shift) in place; returns their sum.
HWY_INLINE float exponentials(float* values, int64_t count, float scale, float shift) {
  const FloatTag d;
  auto sum = hn::Zero(d);
  for_each_vector(count, [&](int64_t i, size_t lanes) HWY_ATTR {
    const auto e =
        hn::Exp(d, hn::MulSub(load(d, values + i, lanes), hn::Set(d, scale), hn::Set(d, shift)));
    store(d, e, values + i, lanes);
    sum = hn::Add(sum, fill_rest(d, e, lanes, 0.0F));
  });
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
