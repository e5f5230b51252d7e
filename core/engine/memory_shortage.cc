#include <palimpsest/core/engine/memory_shortage.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <new>
#include <utility>
#include <vector>

namespace palimpsest {

RefusedAllocation latest_refusal(MemoryContext& memory) {
  if (const auto tracked = memory.take_refusal()) {
    return *tracked;
  }
  RefusedAllocation held{.live = memory.total().live, .limit = memory.limit()};
  for (const Category category : kMemoryCategories) {
    held.by_category[static_cast<size_t>(category)] = memory.usage(category).live;
  }
  return held;
}

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

namespace {

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
  return texts.empty() ? "" : fmt::format(": {}", fmt::join(texts, ", "));
}

} // namespace

std::string describe(const RefusedAllocation& refused, const std::string& doing) {
  std::string text = fmt::format(
      "out of memory {}: {}, {}",
      doing,
      refused.bytes == 0 ? "a library was refused the memory it needs"
                         : format_bytes(refused.bytes) + " wanted",
      format_bytes(refused.live));
  if (refused.limit < std::numeric_limits<int64_t>::max()) {
    text += fmt::format(" of at most {}", format_bytes(refused.limit));
  }
  return text + " held" + largest_holders(refused);
}

std::string describe(const MemoryShortage& shortage) {
  return describe(shortage.refused, shortage.doing);
}

std::optional<RefusedAllocation> refusal_in(
    MemoryContext& memory,
    const std::function<void()>& part) {
  memory.take_refusal(); // an earlier one that was dealt with
  try {
    part();
  } catch (const c10::OutOfMemoryError&) {
    return latest_refusal(memory);
  } catch (const std::bad_alloc&) {
    return latest_refusal(memory);
  }
  return std::nullopt;
}

void name_shortages(
    MemoryContext& memory,
    const std::string& doing,
    const std::function<void()>& part,
    const std::string& advice) {
  if (const auto refused = refusal_in(memory, part)) {
    throw EnvironmentError(
        "{}{}{}", describe(*refused, "while " + doing), advice.empty() ? "" : "; ", advice);
  }
}

} // namespace palimpsest
