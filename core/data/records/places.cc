#include <palimpsest/core/data/records/places.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>

namespace palimpsest {

void Places::add(int64_t items) {
  ends_.push_back(size() + items);
}

Places::Place Places::operator[](int64_t item) const {
  check(item >= 0 && item < size(), "item {} of {}", item, size());
  const auto source = static_cast<size_t>(std::ranges::upper_bound(ends_, item) - ends_.begin());
  return {source, item - (source == 0 ? 0 : ends_[source - 1])};
}

} // namespace palimpsest
