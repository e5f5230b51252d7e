#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "palimpsest/memory/planners/min_plus.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include <palimpsest/memory/planners/min_plus.h>

HWY_BEFORE_NAMESPACE();
namespace palimpsest::HWY_NAMESPACE {

// A plain loop, which the compiler vectorises for each instruction set.
void add_and_keep_least(
    float seconds,
    const float* HWY_RESTRICT one,
    const float* HWY_RESTRICT other,
    float* HWY_RESTRICT best,
    size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const float sum = seconds + one[i] + other[i];
    best[i] = sum < best[i] ? sum : best[i];
  }
}

} // namespace palimpsest::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace palimpsest {

HWY_EXPORT(add_and_keep_least);

void min_plus(float seconds, const float* one, const float* other, float* best, size_t count) {
  HWY_DYNAMIC_DISPATCH(add_and_keep_least)(seconds, one, other, best, count);
}

} // namespace palimpsest
#endif
