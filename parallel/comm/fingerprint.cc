#include <palimpsest/parallel/comm/fingerprint.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/all_texts.h>

#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <vector>

namespace palimpsest {

namespace {

/// Characters of a value that a message shows.
constexpr size_t kShown = 80;

/// Where all values are alike up to: a long one is shown from a little before that.
size_t common_length(const std::vector<std::optional<std::string>>& values) {
  size_t length = 0;
  const auto alike = [&](const std::optional<std::string>& value) {
    return value && length < value->size() && (*value)[length] == (*values[0])[length];
  };
  while (std::ranges::all_of(values, alike)) {
    ++length;
  }
  return length;
}

std::string shown(const std::optional<std::string>& value, size_t common) {
  if (!value) {
    return "missing";
  }
  if (value->size() <= kShown) {
    return fmt::format("'{}'", *value);
  }
  const size_t begin = common > kShown / 2 ? common - kShown / 4 : 0;
  return fmt::format(
      "'{}{}{}'",
      begin > 0 ? "…" : "",
      value->substr(begin, kShown),
      begin + kShown < value->size() ? "…" : "");
}

} // namespace

void require_same(Communicator& communicator, const std::map<std::string, std::string>& mine) {
  const std::vector<std::string> texts = all_texts(
      communicator,
      nlohmann::json(mine).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  if (std::ranges::all_of(texts, [&](const std::string& text) { return text == texts[0]; })) {
    return;
  }
  std::vector<std::map<std::string, std::string>> all;
  std::set<std::string> names;
  for (const std::string& text : texts) {
    all.push_back(nlohmann::json::parse(text).get<std::map<std::string, std::string>>());
    for (const auto& [name, value] : all.back()) {
      names.insert(name);
    }
  }
  for (const std::string& name : names) {
    std::vector<std::optional<std::string>> values; // different ones, by the first rank
    std::vector<std::vector<int>> ranks; // that have them
    for (int rank = 0; rank < communicator.size(); ++rank) {
      const auto found = all[rank].find(name);
      const auto value = found == all[rank].end() ? std::nullopt : std::optional(found->second);
      const auto side = std::ranges::find(values, value) - values.begin();
      if (side == std::ssize(values)) {
        values.push_back(value);
        ranks.emplace_back();
      }
      ranks[side].push_back(rank);
    }
    if (values.size() > 1) {
      std::vector<std::string> parts;
      for (size_t side = 0; side < values.size(); ++side) {
        parts.push_back(fmt::format(
            "{} on rank {}",
            shown(values[side], common_length(values)),
            fmt::join(ranks[side], ", ")));
      }
      throw UserError(
          "{} differs between ranks: {}. All ranks need the same; start them with the same files, "
          "settings and program",
          name,
          fmt::join(parts, "; "));
    }
  }
  check(false, "fingerprints differ, but no name in them does");
}

} // namespace palimpsest
