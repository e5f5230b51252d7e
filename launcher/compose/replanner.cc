#include <palimpsest/launcher/compose/replanner.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/all_texts.h>
#include <palimpsest/parallel/comm/fingerprint.h>

#include <ATen/ops/from_blob.h>

#include <fmt/format.h>

#include <algorithm>

namespace palimpsest {

/// What plans leave out (samples that wait, norms, flags) stays far below this share of their peak.
constexpr int64_t kUncountedShare = 64;

int64_t Replanner::agree_on_excess(int micro_batches, const std::optional<MemoryShortage>& shortage)
    const {
  int64_t excess = 0;
  if (shortage) {
    const int64_t promised = plans_.report(micro_batches).peak(TierId::kDevice);
    const int64_t needed = shortage->refused.live + shortage->refused.bytes;
    excess = needed > promised + promised / kUncountedShare ? needed - promised : 0;
  }
  if (ranks_.world() != nullptr) {
    ranks_.world()->all_reduce(at::from_blob(&excess, {1}, at::kLong), ReduceOp::kMax).wait();
  }
  return excess;
}

void require_same_plan(Ranks& ranks, PlanBook& plans, int micro_batches) {
  if (ranks.world() == nullptr) {
    return;
  }
  const std::string signature = std::to_string(plans.signature(micro_batches));
  ranks.alike([&] {
    require_same(
        *ranks.world(), {{fmt::format("plan of {} micro-batches", micro_batches), signature}});
  });
}

void Replanner::replan(int micro_batches, const std::optional<MemoryShortage>& shortage) {
  constexpr int kTriesOfAPlan = 2;
  const Job& job = plans_.plan(micro_batches)->job;
  const std::string mine = shortage ? describe(*shortage, job) : "";
  const int64_t excess = agree_on_excess(micro_batches, shortage);
  ++tries_;
  std::string what = "the step runs again";
  if (excess > 0 || tries_ >= kTriesOfAPlan) {
    ranks_.together([&] {
      name_shortages(memory_, "planning the step anew", [&] {
        if (!plans_.tighten(micro_batches, excess) && shortage) {
          throw EnvironmentError("{}; {}", mine, plans_.advice(micro_batches));
        }
      });
    });
    require_same_plan(ranks_, plans_, micro_batches);
    what += fmt::format(
        " by a plan of at most {}",
        format_bytes(plans_.report(micro_batches).peak(TierId::kDevice)));
  }
  std::vector<std::string> told = {mine};
  if (ranks_.world() != nullptr) {
    told = all_texts(*ranks_.world(), shortage ? memory_.name() + ": " + mine : "");
  }
  for (const std::string& text : told) {
    for (Observer* observer : text.empty() ? std::vector<Observer*>() : observers_) {
      observer->note(text + "; " + what);
    }
  }
}

} // namespace palimpsest
