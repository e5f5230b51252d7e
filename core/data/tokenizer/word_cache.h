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

  template <typename Number>
  static uint64_t load(const char* bytes) {
    Number number = 0;
    std::memcpy(&number, bytes, sizeof number);
    return number;
  }

  /// Of up to 30 bytes, by loads that overlap.
  static uint64_t hash(std::string_view word) {
    const size_t size = word.size();
    const char* begin = word.data();
    const char* end = begin + size;
    uint64_t sum = size;
    if (size >= 8) {
      sum = mixed(sum ^ load<uint64_t>(begin)) ^ load<uint64_t>(end - 8);
      if (size > 16) {
        sum = mixed(mixed(sum) ^ load<uint64_t>(begin + 8)) ^ load<uint64_t>(end - 16);
      }
    } else if (size >= 4) {
      sum ^= load<uint32_t>(begin) << 32 ^ load<uint32_t>(end - 4) << 3;
    } else {
      sum ^= load<uint8_t>(begin) << 8 ^ load<uint8_t>(begin + size / 2) << 16 ^
          load<uint8_t>(end - 1) << 24;
    }
    return mixed(sum) * 0x9e3779b97f4a7c15;
  }
  static uint64_t mixed(uint64_t value) {
    value *= 0xd6e8feb86659fd93;
    return value ^ value >> 32;
  }

  std::vector<Slot> slots_ = std::vector<Slot>(size_t{1} << kSlotBits);
};

} // namespace palimpsest
