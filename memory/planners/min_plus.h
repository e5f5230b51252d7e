#pragma once

// The inner loop of tables of fastest plans, for the processor's vectors.
//
//   min_plus(seconds, one, other, best, count);

#include <cstddef>

namespace palimpsest {

/// best[i] = min(best[i], seconds + one[i] + other[i]) for i < count. `best` overlaps neither.
void min_plus(float seconds, const float* one, const float* other, float* best, size_t count);

} // namespace palimpsest
