#include <palimpsest/core/io/json.h>

#include <palimpsest/core/base/error.h>

#include <set>
#include <vector>

namespace palimpsest {

std::string quote(std::string_view text) {
  constexpr size_t kMaxLength = 100;
  const std::string cut(text.substr(0, kMaxLength));
  const std::string dump =
      nlohmann::json(cut).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  return text.size() > kMaxLength ? dump + "..." : dump;
}

nlohmann::json parse_json(std::string_view text, const std::string& file) {
  std::vector<std::set<std::string>> keys; // of the objects that are open
  const auto observe = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
    using Event = nlohmann::json::parse_event_t;
    if (depth > kJsonMaxDepth) {
      throw UserError("{}: nested deeper than {} levels", file, kJsonMaxDepth);
    }
    if (event == Event::object_start) {
      keys.emplace_back();
    } else if (event == Event::object_end) {
      keys.pop_back();
    } else if (event == Event::key) {
      const std::string& key = value.get_ref<const std::string&>();
      if (!keys.back().insert(key).second) {
        throw UserError("{}: the key {} occurs twice in one object", file, quote(key));
      }
    }
    return true;
  };
  try {
    return nlohmann::json::parse(text, observe);
  } catch (const nlohmann::json::parse_error& error) {
    throw UserError("{}: not valid JSON at byte {}", file, error.byte);
  } catch (const nlohmann::json::exception&) {
    throw UserError("{}: not valid JSON: a number is out of range", file);
  }
}

} // namespace palimpsest
