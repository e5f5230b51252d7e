#pragma once

// The tokens of words met before: most words of a text are among a few thousand.
//
//   WordCache::Slot& slot = cache.slot(word);        // word.size() <= WordCache::kMaxBytes
//   if (!slot.holds(word)) { ...; slot.set(word, ids); }
//
// Each word has one slot, which the last word with that hash keeps; a slot is one cache line.

#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

namespace palimpsest {

class WordCache {
 public:
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxIds = 8;

  class alignas(64) Slot {
   public:
    bool holds(std::string_view word) const {
      return size_ == word.size() && std::memcmp(bytes_.data(), word.data(), word.size()) == 0;
    }
    std::span<const int32_t> ids() const {
      return {ids_.data(), count_};
    }
    /// Words of more than kMaxIds tokens are not kept.
    void set(std::string_view word, std::span<const int32_t> ids) {
      if (ids.size() > kMaxIds) {
        return;
      }
      size_ = static_cast<uint8_t>(word.size());
      count_ = static_cast<uint8_t>(ids.size());
      std::memcpy(bytes_.data(), word.data(), word.size());
      std::memcpy(ids_.data(), ids.data(), ids.size_bytes());
    }

   private:
    uint8_t size_ = 0; // 0: free, since no word is empty
    uint8_t count_ = 0;
    std::array<char, kMaxBytes> bytes_{};
    std::array<int32_t, kMaxIds> ids_{};
  };

  Slot& slot(std::string_view word) {
    return slots_[hash(word) >> (64 - kSlotBits)];
  }

 private:
  static constexpr int kSlotBits = 15; // 2 MiB

  /// Of up to 30 bytes, eight at a time.
  static uint64_t hash(std::string_view word) {
    constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;
    uint64_t sum = word.size();
    while (word.size() >= sizeof sum) {
      uint64_t bytes = 0;
      std::memcpy(&bytes, word.data(), sizeof bytes);
      sum = mixed(sum ^ bytes);
      word.remove_prefix(sizeof bytes);
    }
    uint64_t rest = 0;
    for (const char byte : word) {
      rest = rest << 8 | static_cast<uint8_t>(byte);
    }
    return mixed(sum ^ rest) * kFactor;
  }
  static uint64_t mixed(uint64_t value) {
    value *= 0xd6e8feb86659fd93;
    return value ^ value >> 32;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << kSlotBits);
};

} // namespace palimpsest
