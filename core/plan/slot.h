#pragma once

// Slots: the names of the tensors that live across operations, states included, and the places they
// occupy.
//
//   Slot tape{.kind = SlotKind::kTape, .owner = 3, .mb = 0};
//   to_text(tape);                          // "tape(3,mb=0)"
//   parse_slot("value(loader,0,mb=1)");     // what LOAD brings
//
// A slot may be live on several tiers at once; a (slot, tier) is a place: what is charged, and what
// DROP frees.

#include <compare>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace palimpsest {

enum class SlotKind : uint8_t {
  kValue, ///< value(producer, k, mb): a tensor that a block writes
  kGrad, ///< grad(value)
  kTape, ///< tape(block, mb): what the block's BACKWARD needs, lean or full
  kWeightJobs, ///< weight_jobs(block, mb): what part=weight needs after part=input
  kParam, ///< param(unit): whole parameters
  kParamShard,
  kGradBuffer, ///< grad_buffer(unit): the whole gradient of this rank
  kGradShard,
  kOptimizerState,
};
constexpr int kSlotKinds = 9;

/// The media a slot may lie on.
enum class TierId : uint8_t { kDevice, kHost, kDisk };
constexpr int kTiers = 3;

/// The producer of what LOAD brings: value(loader, 0, mb).
constexpr int kLoader = -1;

struct Slot {
  SlotKind kind = SlotKind::kValue;
  int owner = -1; ///< the producing block for the first four kinds, the unit for the others
  int index = 0; ///< which of the producer's values (kValue and kGrad)
  int mb = -1; ///< micro-batch (the first four kinds)

  auto operator<=>(const Slot&) const = default;
};

struct Place {
  Slot slot{};
  TierId tier = TierId::kDevice;

  auto operator<=>(const Place&) const = default;
};

/// Whether slots of this kind belong to one micro-batch (owner: a block) or to the step (owner: a
/// unit).
constexpr bool per_micro_batch(SlotKind kind) {
  return kind <= SlotKind::kWeightJobs;
}

std::string_view to_text(SlotKind kind);
std::string_view to_text(TierId tier);

/// "value(3,0,mb=1)", "tape(3,mb=0)", "param(2)".
std::string to_text(const Slot& slot);

/// The inverse. Throws UserError naming the text.
Slot parse_slot(std::string_view text);

/// "device", "host" or "disk". Throws UserError naming the text.
TierId parse_tier(std::string_view text);

/// Mixes `value` into `seed`: the combiner of the hashes below.
constexpr uint64_t hash_mix(uint64_t seed, uint64_t value) {
  uint64_t x = (seed ^ value) * 0x9e3779b97f4a7c15ULL;
  x ^= x >> 32;
  return x * 0xd6e8feb86659fd93ULL ^ (x >> 29);
}

} // namespace palimpsest

template <>
struct std::hash<palimpsest::Slot> {
  size_t operator()(const palimpsest::Slot& slot) const noexcept {
    using palimpsest::hash_mix;
    const auto low = static_cast<uint64_t>(static_cast<uint32_t>(slot.owner)) |
        static_cast<uint64_t>(slot.kind) << 32 | static_cast<uint64_t>(slot.index) << 40;
    return hash_mix(hash_mix(7, low), static_cast<uint32_t>(slot.mb));
  }
};

template <>
struct std::hash<palimpsest::Place> {
  size_t operator()(const palimpsest::Place& place) const noexcept {
    return palimpsest::hash_mix(
        std::hash<palimpsest::Slot>()(place.slot), static_cast<uint64_t>(place.tier));
  }
};
