// Philox words by the vector, for the kernels' sources; compiled once per instruction set by
// Highway, as simd-inl.h is.
//
//   HWY_ALIGN uint32_t words[kRunWords + kWordPadding];
//   philox_words({.key = key, .counter = {0, row, 0, 0}}, first / 4, groups, words);

#if defined(PALIMPSEST_PHILOX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef PALIMPSEST_PHILOX_INL_H_
#undef PALIMPSEST_PHILOX_INL_H_
#else
#define PALIMPSEST_PHILOX_INL_H_
#endif

#include <palimpsest/core/kernels/philox.h>
#include <palimpsest/core/kernels/simd-inl.h>

#include <algorithm>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::kernels::HWY_NAMESPACE {

/// Words of `groups` consecutive counters, four per counter: counter[0] counts from `first_group`.
/// `words` has kWordPadding more, since counters come in whole vectors.
#if HWY_TARGET == HWY_SCALAR
constexpr int64_t kWordPadding = 0;

inline void philox_words(
    PhiloxKey key,
    const PhiloxCounter& counter,
    uint32_t first_group,
    int64_t groups,
    uint32_t* words) {
  for (int64_t g = 0; g < groups; ++g) {
    PhiloxCounter own = counter;
    own[0] = first_group + static_cast<uint32_t>(g);
    const auto four = philox4x32_10(own, key);
    std::copy(four.begin(), four.end(), words + 4 * g);
  }
}
#else
constexpr int64_t kWordPadding = 4 * static_cast<int64_t>(hn::MaxLanes(FloatTag()));

// A 64-bit lane holds one counter's word in its lower half, as MulEven wants it.
HWY_INLINE void philox_words(
    PhiloxKey key,
    const PhiloxCounter& counter,
    uint32_t first_group,
    int64_t groups,
    uint32_t* words) {
  using Tag = hn::ScalableTag<uint64_t>;
  using WideWordTag = hn::Repartition<uint32_t, Tag>;
  const Tag d;
  const WideWordTag d32;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const auto low = hn::Set(d, 0xFFFFFFFFULL);
  const auto times = [&](hn::Vec<Tag> v, uint32_t multiplier) HWY_ATTR {
    return hn::MulEven(hn::BitCast(d32, v), hn::Set(d32, multiplier));
  };
  for (int64_t g = 0; g < groups; g += lanes) {
    auto c0 = hn::And(hn::Iota(d, uint64_t{first_group} + static_cast<uint64_t>(g)), low);
    auto c1 = hn::Set(d, uint64_t{counter[1]});
    auto c2 = hn::Set(d, uint64_t{counter[2]});
    auto c3 = hn::Set(d, uint64_t{counter[3]});
    PhiloxKey round_key = key;
    for (int round = 0; round < 10; ++round) {
      const auto product0 = times(c0, kPhiloxMultiplier0);
      const auto product1 = times(c2, kPhiloxMultiplier1);
      c0 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product1), c1), hn::Set(d, uint64_t{round_key[0]}));
      c2 = hn::Xor(hn::Xor(hn::ShiftRight<32>(product0), c3), hn::Set(d, uint64_t{round_key[1]}));
      c1 = hn::And(product1, low);
      c3 = hn::And(product0, low);
      round_key = {round_key[0] + kPhiloxWeyl0, round_key[1] + kPhiloxWeyl1};
    }
    const auto first = hn::Or(c0, hn::ShiftLeft<32>(c1));
    const auto second = hn::Or(c2, hn::ShiftLeft<32>(c3));
    hn::StoreInterleaved2(first, second, d, reinterpret_cast<uint64_t*>(words + 4 * g));
  }
}
#endif

} // namespace palimpsest::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
