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

int64_t Replanner::agree_on_excess(int64_t promised, const std::optional<MemoryShortage>& shortage)
    const {
  int64_t excess = 0;
  if (shortage) {
    const int64_t needed = shortage->refused.live + shortage->refused.bytes;
    excess = needed > promised + promised / kUncountedShare ? needed - promised : 0;
  }
  if (ranks_.world() != nullptr) {
    ranks_.world()->all_reduce(at::from_blob(&excess, {1}, at::kLong), ReduceOp::kMax).wait();
  }
  return excess;
}

namespace {

void require_same_signature(Ranks& ranks, const std::string& plan, uint64_t signature) {
  if (ranks.world() != nullptr) {
    ranks.alike([&] { require_same(*ranks.world(), {{plan, std::to_string(signature)}}); });
  }
}

} // namespace

void require_same_plan(Ranks& ranks, PlanBook& plans, int micro_batches) {
  require_same_signature(
      ranks,
      fmt::format("plan of {} micro-batches", micro_batches),
      plans.signature(micro_batches));
}

void require_same_evaluation(Ranks& ranks, PlanBook& plans) {
  require_same_signature(ranks, "plan of an evaluation", plans.evaluation().signature);
}

void Replanner::replan(int micro_batches, const std::optional<MemoryShortage>& shortage) {
  replan(
      {.name = "the step",
       .promised = [&] { return plans_.report(micro_batches).peak(TierId::kDevice); },
       .tighten = [&](int64_t excess) { return plans_.tighten(micro_batches, excess); },
       .advice = [&] { return plans_.advice(micro_batches); },
       .compare = [&] { require_same_plan(ranks_, plans_, micro_batches); }},
      shortage);
}

void Replanner::replan_evaluation(const std::optional<MemoryShortage>& shortage) {
  replan(
      {.name = "the evaluation",
       .promised = [&] { return plans_.evaluation().report.peak(TierId::kDevice); },
       .tighten = [&](int64_t /*excess*/) { return plans_.tighten_evaluation(); },
       .advice = [&] { return plans_.evaluation_advice(); },
       .compare = [&] { require_same_evaluation(ranks_, plans_); }},
      shortage);
}

void Replanner::replan(const Work& work, const std::optional<MemoryShortage>& shortage) {
  constexpr int kTriesOfAPlan = 2;
  const std::string mine = shortage ? describe(*shortage) : "";
  const int64_t excess = agree_on_excess(work.promised(), shortage);
  ++tries_;
  std::string what = work.name + " runs again";
  if (excess > 0 || tries_ >= kTriesOfAPlan) {
    ranks_.together([&] {
      name_shortages(memory_, fmt::format("planning {} anew", work.name), [&] {
        if (!work.tighten(excess) && shortage) {
          throw EnvironmentError("{}; {}", mine, work.advice());
        }
      });
    });
    work.compare();
    what += fmt::format(" by a plan of at most {}", format_bytes(work.promised()));
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
