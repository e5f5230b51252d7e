#pragma once

// Included before Highway: leaves out instruction sets that no processor of the last fifteen years stops at, which halves
// the compile time of every vector source. The baseline always remains.

#include <hwy/detect_targets.h>

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
