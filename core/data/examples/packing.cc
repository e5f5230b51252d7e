#include <palimpsest/core/data/examples/packing.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <map>
#include <numeric>

namespace palimpsest {

Packs pack(std::span<const int32_t> lengths, int64_t capacity) {
  std::vector<int64_t> longest_first(lengths.size());
  std::iota(longest_first.begin(), longest_first.end(), 0);
  std::ranges::stable_sort(longest_first, [&](int64_t a, int64_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  std::map<int64_t, std::vector<int64_t>> open; // packs by the room that they have left
  std::vector<int64_t> pack_of(lengths.size());
  int64_t packs = 0;
  for (const int64_t item : longest_first) {
    const int64_t length = lengths[static_cast<size_t>(item)];
    check(length > 0 && length <= capacity, "an item of {} in packs of {}", length, capacity);
    const auto tightest = open.lower_bound(length);
    int64_t room = capacity;
    int64_t chosen = packs;
    if (tightest == open.end()) {
      ++packs;
    } else {
      room = tightest->first;
      chosen = tightest->second.back();
      tightest->second.pop_back();
      if (tightest->second.empty()) {
        open.erase(tightest);
      }
    }
    pack_of[static_cast<size_t>(item)] = chosen;
    if (room > length) {
      open[room - length].push_back(chosen);
    }
  }

  std::vector<int64_t> number(static_cast<size_t>(packs), -1); // by first item
  std::vector<int64_t> sizes;
  for (int64_t& chosen : pack_of) {
    int64_t& known = number[static_cast<size_t>(chosen)];
    if (known < 0) {
      known = std::ssize(sizes);
      sizes.push_back(0);
    }
    chosen = known;
    ++sizes[static_cast<size_t>(known)];
  }
  Packs result{.items = std::vector<int64_t>(lengths.size())};
  std::partial_sum(sizes.begin(), sizes.end(), std::back_inserter(result.ends));
  std::vector<int64_t> next(sizes.size(), 0);
  std::partial_sum(
      sizes.begin(), sizes.end() - (sizes.empty() ? 0 : 1), next.begin() + (sizes.empty() ? 0 : 1));
  for (size_t item = 0; item < pack_of.size(); ++item) {
    const int64_t at = next[static_cast<size_t>(pack_of[item])]++;
    result.items[static_cast<size_t>(at)] = static_cast<int64_t>(item);
  }
  return result;
}

} // namespace palimpsest
