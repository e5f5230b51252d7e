#pragma once

// Included before Highway, whose macros it sets: leaves out instruction sets that no processor of
// the last ten years stops at, which halves the compile time of every vector source. AVX2, AVX-512
// and a scalar baseline remain on x86.

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4)
#endif
