#include <palimpsest/launcher/compose/fair_threads.h>

#include <palimpsest/core/base/host.h>
#include <palimpsest/launcher/launch/threads.h>
#include <palimpsest/parallel/comm/all_texts.h>

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <vector>

namespace palimpsest {

int fair_threads(Communicator& world) {
  const std::string host = host_name();
  const std::string mine =
      host + "\n" + fmt::format("{}", fmt::join(allowed_processors(), " ")) + " ";
  const std::vector<std::string> all = all_texts(world, mine);
  std::vector<std::vector<int>> masks; // of this host's ranks
  int place = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    const size_t line = all[rank].find('\n');
    if (all[rank].substr(0, line) != host) {
      continue;
    }
    if (static_cast<int>(rank) == world.rank()) {
      place = static_cast<int>(masks.size());
    }
    std::vector<int>& mask = masks.emplace_back();
    const char* next = all[rank].data() + line + 1;
    const char* end = all[rank].data() + all[rank].size();
    for (int processor = 0; next < end; ++next) { // behind the blank
      next = std::from_chars(next, end, processor).ptr;
      mask.push_back(processor);
    }
  }
  return threads_per_rank(masks, place);
}

} // namespace palimpsest
