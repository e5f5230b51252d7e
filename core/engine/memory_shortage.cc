#include <palimpsest/core/engine/memory_shortage.h>

#include <palimpsest/core/base/bytes.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

namespace palimpsest {

std::string describe(const Op& op, const Job& job) {
  const std::string kind(to_text(op.kind));
  if (op.block >= 0) {
    return fmt::format(
        "{} of {}, micro-batch {}",
        kind,
        job.model().blocks[static_cast<size_t>(op.block)].name,
        op.mb);
  }
  if (op.unit >= 0) {
    return fmt::format("{} of {}", kind, job.model().units[static_cast<size_t>(op.unit)].name);
  }
  return kind;
}

std::string largest_holders(const RefusedAllocation& refused) {
  std::vector<std::pair<int64_t, Category>> holders;
  for (const Category category : kMemoryCategories) {
    if (const int64_t bytes = refused.by_category[static_cast<size_t>(category)]; bytes > 0) {
      holders.emplace_back(bytes, category);
    }
  }
  std::ranges::sort(holders, std::greater());
  std::vector<std::string> texts;
  for (const auto& [bytes, category] : holders) {
    texts.push_back(fmt::format("{} {}", category_name(category), format_bytes(bytes)));
  }
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string describe(const MemoryShortage& shortage, const Job& job, const std::string& who) {
  const RefusedAllocation& refused = shortage.refused;
  std::string text = fmt::format("{}: out of memory in {}", who, describe(shortage.op, job));
  if (refused.bytes == 0) {
    return text + ": a library was refused the memory it needs";
  }
  text += fmt::format(": {} wanted, {}", format_bytes(refused.bytes), format_bytes(refused.live));
  if (refused.limit < std::numeric_limits<int64_t>::max()) {
    text += fmt::format(" of at most {}", format_bytes(refused.limit));
  }
  return text + " held: " + largest_holders(refused);
}

} // namespace palimpsest
