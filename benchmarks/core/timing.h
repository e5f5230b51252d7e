#pragma once

// Seconds of one call, and the median of several.

#include <algorithm>
#include <chrono>
#include <vector>

namespace palimpsest {

inline double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + std::ssize(values) / 2, values.end());
  return values[values.size() / 2];
}

template <typename F>
double seconds(F&& f) {
  const auto start = std::chrono::steady_clock::now();
  f();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

} // namespace palimpsest
