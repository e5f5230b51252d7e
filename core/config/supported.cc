#include <palimpsest/core/config/schema.h>
#include <palimpsest/core/config/supported.h>
#include <palimpsest/core/config/validate.h>

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace palimpsest {
const std::vector<Limit>& limits() {
  static const std::vector<Limit> all = {
      {"memory.host_budget", {}, "planning for a given host budget"},
      {"pipeline.stages", {"1"}, "pipeline stages"},
      {"pipeline.schedule", {"1f1b"}, "other pipeline schedules"},
      {"offload.optimizer", {"device"}, "offloading optimizer states"},
      {"offload.parameters", {"device"}, "offloading parameters"},
      {"offload.gradients", {"device"}, "offloading gradients"},
      {"offload.activations", {"device"}, "offloading activations"},
  };
  return all;
}

void check_supported(const RunConfig& config, const Origins& origins, Problems& problems) {
  for (const Limit& limit : limits()) {
    const auto value = value_text(config, limit.key);
    if (!value || std::count(limit.works.begin(), limit.works.end(), *value) > 0) {
      continue;
    }
    problems.push_back(fmt::format(
        "{} is {}, but this version cannot do this: {}; {}",
        name_key(limit.key, origins),
        *value,
        limit.feature,
        limit.works.empty() ? "leave it out"
                            : fmt::format("give {}", fmt::join(limit.works, ", "))));
  }
}

} // namespace palimpsest
