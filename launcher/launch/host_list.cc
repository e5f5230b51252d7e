#include <palimpsest/launcher/launch/host_list.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <numeric>
#include <optional>
#include <set>

namespace palimpsest {
namespace {

constexpr size_t kMostHosts = 65536;
constexpr int kMostSlots = 65536;

std::optional<int> parse_number(std::string_view text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (text.starts_with('-') || error != std::errc() || end != text.data() + text.size()) {
    return std::nullopt;
  }
  return number;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  for (size_t end = text.find(separator); end != std::string_view::npos;
       end = text.find(separator, start)) {
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  parts.push_back(text.substr(start));
  return parts;
}

/// A name that can be a host's and means nothing else in the lists.
bool is_host_name(std::string_view name) {
  const auto valid = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
        c == '-' || c == '_';
  };
  return !name.empty() && name.front() != '-' && std::all_of(name.begin(), name.end(), valid);
}

/// The parts of a Slurm list: commas within brackets separate numbers, not names.
std::vector<std::string_view> split_outside_brackets(
    std::string_view list,
    const std::string& what) {
  std::vector<std::string_view> parts;
  size_t start = 0;
  bool inside = false;
  for (size_t i = 0; i < list.size(); ++i) {
    if ((list[i] == '[' && inside) || (list[i] == ']' && !inside)) {
      throw UserError("{}: brackets do not match in {}", what, list);
    }
    inside = list[i] == '[' || (inside && list[i] != ']');
    if (list[i] == ',' && !inside) {
      parts.push_back(list.substr(start, i - start));
      start = i + 1;
    }
  }
  if (inside) {
    throw UserError("{}: a bracket is not closed in {}", what, list);
  }
  parts.push_back(list.substr(start));
  return parts;
}

/// "01-03,07" -> 01 02 03 07.
std::vector<std::string> expand_bracket(std::string_view bracket, const std::string& what) {
  std::vector<std::string> numbers;
  for (const std::string_view range : split(bracket, ',')) {
    const size_t dash = range.find('-');
    const std::string_view first = range.substr(0, dash);
    const std::string_view last = dash == std::string_view::npos ? first : range.substr(dash + 1);
    const std::optional<int> from = parse_number(first);
    const std::optional<int> to = parse_number(last);
    if (!from || !to || *to < *from) {
      throw UserError(
          "{}: '{}' in [{}] is neither a number nor a range such as 01-03", what, range, bracket);
    }
    if (static_cast<size_t>(*to - *from) >= kMostHosts) {
      throw UserError("{}: [{}] is more than {} hosts", what, bracket, kMostHosts);
    }
    for (int number = *from; number <= *to; ++number) {
      numbers.push_back(fmt::format("{:0{}}", number, first.size()));
    }
  }
  return numbers;
}

/// One name of a Slurm list with all its brackets.
std::vector<std::string> expand_name(std::string_view name, const std::string& what) {
  std::vector<std::string> names = {""};
  while (!name.empty()) {
    const size_t open = name.find('[');
    for (std::string& prefix : names) {
      prefix += name.substr(0, open);
    }
    if (open == std::string_view::npos) {
      break;
    }
    const size_t close = name.find(']', open);
    const std::vector<std::string> numbers =
        expand_bracket(name.substr(open + 1, close - open - 1), what);
    if (names.size() * numbers.size() > kMostHosts) {
      throw UserError("{}: more than {} hosts", what, kMostHosts);
    }
    std::vector<std::string> longer;
    for (const std::string& prefix : names) {
      for (const std::string& number : numbers) {
        longer.push_back(prefix + number);
      }
    }
    names = std::move(longer);
    name.remove_prefix(close + 1);
  }
  return names;
}

std::vector<int> first_numbers(int count) {
  std::vector<int> numbers(static_cast<size_t>(count));
  std::iota(numbers.begin(), numbers.end(), 0);
  return numbers;
}

/// A line of a hostfile, taken apart.
struct HostLine {
  std::string name;
  std::optional<int> slots;
};

/// `where`: file:line and the line's text.
HostLine parse_host_line(const std::vector<std::string_view>& words, const std::string& where) {
  const auto refuse = [&](const std::string& why) {
    throw UserError("{}: {}; a line is 'host', 'host slots=4' or 'host:4'", where, why);
  };
  const auto count = [&](std::string_view text) {
    const std::optional<int> number = parse_number(text);
    if (!number || *number < 1 || *number > kMostSlots) {
      refuse(fmt::format("'{}' is no number of slots from 1 to {}", text, kMostSlots));
    }
    return *number;
  };
  HostLine line;
  const size_t colon = words[0].find(':');
  line.name = words[0].substr(0, colon);
  if (!is_host_name(line.name)) {
    refuse("no host name at its start");
  }
  if (colon != std::string_view::npos) {
    line.slots = count(words[0].substr(colon + 1));
  }
  std::optional<int> most;
  for (size_t i = 1; i < words.size(); ++i) {
    const size_t equals = words[i].find('=');
    const std::string_view key = words[i].substr(0, equals);
    if (equals == std::string_view::npos ||
        (key != "slots" && key != "max_slots" && key != "max-slots")) {
      refuse(fmt::format("'{}' is neither slots=n nor max_slots=n", words[i]));
    }
    std::optional<int>& value = key == "slots" ? line.slots : most;
    if (value) {
      refuse(fmt::format("a second number of slots, '{}'", words[i]));
    }
    value = count(words[i].substr(equals + 1));
  }
  if (most && *most < line.slots.value_or(1)) {
    refuse(fmt::format("max_slots={} is below its {} slots", *most, line.slots.value_or(1)));
  }
  return line;
}

std::vector<std::string_view> words_of(std::string_view line) {
  std::vector<std::string_view> words;
  line = line.substr(0, line.find('#'));
  constexpr const char* kBlanks = " \t\r";
  size_t start = line.find_first_not_of(kBlanks);
  while (start != std::string_view::npos) {
    const size_t end = std::min(line.find_first_of(kBlanks, start), line.size());
    words.push_back(line.substr(start, end - start));
    start = line.find_first_not_of(kBlanks, end);
  }
  return words;
}

using Selection = std::map<std::string, std::vector<int>>; // by host: its named slots, ascending

Selection parse_filter(
    const std::vector<HostSlots>& hosts,
    const std::string& filter,
    const char* flag) {
  std::vector<std::string> names;
  for (const HostSlots& host : hosts) {
    names.push_back(host.name);
  }
  Selection selection;
  for (const std::string_view part : split(filter, '@')) {
    const size_t colon = part.find(':');
    const std::string name(part.substr(0, colon));
    const auto host = std::find_if(
        hosts.begin(), hosts.end(), [&](const HostSlots& known) { return known.name == name; });
    if (host == hosts.end()) {
      throw UserError(
          "{} {}: there is no host '{}'; there are {}", flag, filter, name, fmt::join(names, ", "));
    }
    std::set<int> slots;
    if (colon == std::string_view::npos) {
      slots.insert(host->slots.begin(), host->slots.end());
    } else {
      for (const std::string_view text : split(part.substr(colon + 1), ',')) {
        const std::optional<int> slot = parse_number(text);
        if (!slot || !std::binary_search(host->slots.begin(), host->slots.end(), *slot)) {
          throw UserError(
              "{} {}: host {} has no slot '{}'; it has {}",
              flag,
              filter,
              name,
              text,
              fmt::join(host->slots, ", "));
        }
        if (!slots.insert(*slot).second) {
          throw UserError("{} {}: slot {} of {} is named twice", flag, filter, *slot, name);
        }
      }
    }
    if (!selection.emplace(name, std::vector<int>(slots.begin(), slots.end())).second) {
      throw UserError(
          "{} {}: host {} is named twice; list its slots once, as in {}:0,2",
          flag,
          filter,
          name,
          name);
    }
  }
  return selection;
}

} // namespace

std::vector<std::string> expand_slurm_hosts(std::string_view list, const std::string& what) {
  std::vector<std::string> hosts;
  for (const std::string_view part : split_outside_brackets(list, what)) {
    for (std::string& name : expand_name(part, what)) {
      if (!is_host_name(name)) {
        throw UserError("{}: '{}' in '{}' is no host name", what, name, list);
      }
      hosts.push_back(std::move(name));
    }
    if (hosts.size() > kMostHosts) {
      throw UserError("{}: more than {} hosts", what, kMostHosts);
    }
  }
  return hosts;
}

std::vector<int> expand_slurm_counts(std::string_view list, const std::string& what) {
  std::vector<int> counts;
  for (const std::string_view part : split(list, ',')) {
    const size_t open = part.find("(x");
    const bool repeated = open != std::string_view::npos && part.ends_with(')');
    const std::string_view text = repeated ? part.substr(0, open) : part;
    const std::string_view times =
        repeated ? part.substr(open + 2, part.size() - open - 3) : std::string_view("1");
    const std::optional<int> count = parse_number(text);
    const std::optional<int> repeats = parse_number(times);
    if (!count || !repeats || *count < 1 || *repeats < 1 ||
        counts.size() + static_cast<size_t>(*repeats) > kMostHosts) {
      throw UserError("{}: '{}' in '{}' is no count such as 4 or 4(x2)", what, part, list);
    }
    counts.insert(counts.end(), static_cast<size_t>(*repeats), *count);
  }
  return counts;
}

std::vector<HostSlots> read_hostfile(const std::filesystem::path& path) {
  const std::string text = read_file(path, int64_t{1} << 24);
  struct Found {
    size_t line;
    bool stated;
  };
  std::map<std::string, Found> found;
  std::vector<HostSlots> hosts;
  const std::vector<std::string_view> lines = split(text, '\n');
  for (size_t number = 1; number <= lines.size(); ++number) {
    const std::string_view raw = lines[number - 1];
    const std::vector<std::string_view> words = words_of(raw);
    if (words.empty()) {
      continue;
    }
    const std::string where =
        fmt::format("{}:{}: '{}'", path.string(), number, raw.substr(0, raw.find('\r')));
    const HostLine line = parse_host_line(words, where);
    const auto [seen, is_new] = found.emplace(line.name, Found{number, line.slots.has_value()});
    if (is_new) {
      hosts.push_back({line.name, first_numbers(line.slots.value_or(1))});
    } else if (line.slots || seen->second.stated) {
      throw UserError(
          "{}: {} is listed already, in line {}; list a host's slots once",
          where,
          line.name,
          seen->second.line);
    } else {
      HostSlots& host = *std::find_if(
          hosts.begin(), hosts.end(), [&](const HostSlots& h) { return h.name == line.name; });
      host.slots.push_back(static_cast<int>(host.slots.size()));
    }
  }
  if (hosts.empty()) {
    throw UserError("{}: names no host", path.string());
  }
  return hosts;
}

std::vector<HostSlots> include_hosts(
    const std::vector<HostSlots>& hosts,
    const std::string& filter) {
  Selection selection = parse_filter(hosts, filter, "--include");
  std::vector<HostSlots> kept;
  for (const HostSlots& host : hosts) {
    if (selection.contains(host.name)) {
      kept.push_back({host.name, selection[host.name]});
    }
  }
  return kept;
}

std::vector<HostSlots> exclude_hosts(
    const std::vector<HostSlots>& hosts,
    const std::string& filter) {
  Selection selection = parse_filter(hosts, filter, "--exclude");
  std::vector<HostSlots> kept;
  for (const HostSlots& host : hosts) {
    const std::vector<int>& gone = selection[host.name];
    HostSlots rest = {host.name, {}};
    std::set_difference(
        host.slots.begin(),
        host.slots.end(),
        gone.begin(),
        gone.end(),
        std::back_inserter(rest.slots));
    if (!rest.slots.empty()) {
      kept.push_back(std::move(rest));
    }
  }
  if (kept.empty()) {
    throw UserError("--exclude {}: no slot of any host is left", filter);
  }
  return kept;
}

} // namespace palimpsest
