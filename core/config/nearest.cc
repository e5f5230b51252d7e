#include <palimpsest/core/config/nearest.h>

#include <algorithm>
#include <cstddef>

namespace palimpsest {

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<int>> rows(a.size() + 1, std::vector<int>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) {
    for (size_t j = 0; j <= b.size(); ++j) {
      if (i == 0 || j == 0) {
        rows[i][j] = static_cast<int>(i + j);
        continue;
      }
      const int replaced = rows[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      rows[i][j] = std::min({rows[i - 1][j] + 1, rows[i][j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        rows[i][j] = std::min(rows[i][j], rows[i - 2][j - 2] + 1);
      }
    }
  }
  return rows[a.size()][b.size()];
}

std::string nearest_name(std::string_view name, const std::vector<std::string>& candidates) {
  constexpr size_t kLongestName = 100; // longer ones are no slip of the finger
  std::string nearest;
  int smallest = 0;
  for (const std::string& candidate : candidates) {
    if (name.size() > kLongestName) {
      break;
    }
    const int distance = edit_distance(name, candidate);
    const auto longer = static_cast<int>(std::max(name.size(), candidate.size()));
    if (2 * distance <= longer && (nearest.empty() || distance < smallest)) {
      nearest = candidate;
      smallest = distance;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view name, const std::vector<std::string>& candidates) {
  const std::string nearest = nearest_name(name, candidates);
  return nearest.empty() ? "" : " (did you mean " + nearest + "?)";
}

} // namespace palimpsest
