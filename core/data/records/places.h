#pragma once

// Items of several sources, numbered through.
//
//   Places places;
//   places.add(3);
//   places.add(2);
//   places[3];      // item 0 of source 1

#include <cstddef>
#include <cstdint>
#include <vector>

namespace palimpsest {

class Places {
 public:
  struct Place {
    size_t source = 0;
    int64_t item = 0;
    bool operator==(const Place&) const = default;
  };

  /// The next source.
  void add(int64_t items);
  /// Items of all of them.
  int64_t size() const {
    return ends_.empty() ? 0 : ends_.back();
  }
  /// InternalError where there is no such item.
  Place operator[](int64_t item) const;

 private:
  std::vector<int64_t> ends_; // of each source
};

} // namespace palimpsest
