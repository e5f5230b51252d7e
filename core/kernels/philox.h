#pragma once

// Philox4x32-10, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as
// 1, 2, 3" (SC 2011).
//
//   auto words = kernels::philox4x32_10({i, 0, 0, 0}, {seed_low, seed_high});
//
// A pure function: equal counters and keys give equal words on every machine, in any order, on any
// thread.

#include <array>
#include <cstdint>

namespace palimpsest::kernels {

using PhiloxCounter = std::array<uint32_t, 4>;
using PhiloxKey = std::array<uint32_t, 2>;

inline constexpr uint32_t kPhiloxMultiplier0 = 0xD2511F53U;
inline constexpr uint32_t kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr uint32_t kPhiloxWeyl0 = 0x9E3779B9U;
inline constexpr uint32_t kPhiloxWeyl1 = 0xBB67AE85U;

/// Four random words of one counter under one key.
constexpr PhiloxCounter philox4x32_10(PhiloxCounter counter, PhiloxKey key) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{kPhiloxMultiplier0} * counter[0];
    const uint64_t product1 = uint64_t{kPhiloxMultiplier1} * counter[2];
    counter = {
        static_cast<uint32_t>(product1 >> 32) ^ counter[1] ^ key[0],
        static_cast<uint32_t>(product1),
        static_cast<uint32_t>(product0 >> 32) ^ counter[3] ^ key[1],
        static_cast<uint32_t>(product0)};
    key = {key[0] + kPhiloxWeyl0, key[1] + kPhiloxWeyl1};
  }
  return counter;
}

} // namespace palimpsest::kernels
