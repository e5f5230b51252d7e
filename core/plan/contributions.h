#pragma once

// The set of contributions in a gradient; private to core/plan.
//
//   Contributions mine;
//   mine.add(3);            // true: it was new
//   whole.add(mine);        // false where one of them was there already: it would be counted twice
//
// A bitset over the window of words it needs, so that one rank's part of a set over a thousand
// ranks stays small.

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace palimpsest {

class Contributions {
 public:
  bool add(size_t bit) {
    grow(bit / 64, bit / 64 + 1);
    uint64_t& word = words_[bit / 64 - first_];
    const uint64_t mask = uint64_t{1} << bit % 64;
    const bool fresh = (word & mask) == 0;
    word |= mask;
    return fresh;
  }

  bool add(const Contributions& other) {
    if (other.words_.empty()) {
      return true;
    }
    grow(other.first_, other.first_ + other.words_.size());
    uint64_t twice = 0;
    uint64_t* words = words_.data() + (other.first_ - first_);
    for (size_t index = 0; index < other.words_.size(); ++index) {
      twice |= words[index] & other.words_[index];
      words[index] |= other.words_[index];
    }
    return twice == 0;
  }

  bool contains(size_t bit) const {
    const size_t word = bit / 64;
    return word >= first_ && word - first_ < words_.size() &&
        (words_[word - first_] >> bit % 64 & 1) != 0;
  }

  size_t count() const {
    size_t total = 0;
    for (const uint64_t word : words_) {
      total += static_cast<size_t>(std::popcount(word));
    }
    return total;
  }

  void clear() {
    words_.clear();
  }

 private:
  /// Makes the window cover words [begin, end).
  void grow(size_t begin, size_t end) {
    if (words_.empty()) {
      first_ = begin;
    }
    if (begin < first_) {
      words_.insert(words_.begin(), first_ - begin, 0);
      first_ = begin;
    }
    words_.resize(std::max(words_.size(), end - first_), 0);
  }

  size_t first_ = 0;
  std::vector<uint64_t> words_;
};

} // namespace palimpsest
