#include <palimpsest/core/base/bytes.h>

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <utility>

namespace palimpsest {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 11> kUnits{{
    {"", 1},
    {"B", 1},
    {"KiB", 0x1p10},
    {"MiB", 0x1p20},
    {"GiB", 0x1p30},
    {"TiB", 0x1p40},
    {"kB", 1e3},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
}};

} // namespace

std::optional<int64_t> parse_bytes(std::string_view text) {
  double number = 0;
  const auto [end, status] =
      std::from_chars(text.data(), text.data() + text.size(), number, std::chars_format::fixed);
  if (status != std::errc() || !std::isfinite(number) || std::signbit(number)) {
    return std::nullopt;
  }
  std::string_view unit = text.substr(static_cast<size_t>(end - text.data()));
  if (unit.starts_with(' ')) {
    unit.remove_prefix(1);
  }
  for (const auto& [name, factor] : kUnits) {
    if (unit == name) {
      constexpr double kRounding = 1e-3; // of the product
      const double bytes = std::floor(number * factor + kRounding);
      if (bytes >= 0x1p63 || (factor == 1 && bytes != number)) {
        return std::nullopt;
      }
      return static_cast<int64_t>(bytes);
    }
  }
  return std::nullopt;
}

std::string format_bytes(int64_t bytes) {
  constexpr std::array<std::string_view, 5> kNames{"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (std::abs(value) >= 1000 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) {
    return fmt::format("{} B", bytes);
  }
  const int digits = std::abs(value) < 10 ? 2 : std::abs(value) < 100 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, digits, kNames[unit]);
}

} // namespace palimpsest
