#include <palimpsest/memory/report/step_report.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <cctype>
#include <map>
#include <set>
#include <utility>

namespace palimpsest {
namespace {

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(), [](unsigned char c) { return std::tolower(c); });
  return result;
}

const std::string& block_name(const Job& job, int block) {
  return job.model().blocks[static_cast<size_t>(block)].name;
}

const std::string& unit_name(const Job& job, int unit) {
  return job.model().units[static_cast<size_t>(unit)].name;
}

/// What the operation is about, by name.
std::string subject(const Job& job, const Op& op) {
  if (op.block >= 0) {
    return block_name(job, op.block);
  }
  if (op.unit >= 0) {
    return unit_name(job, op.unit);
  }
  if (!has_slot(op.kind)) {
    return "";
  }
  if (!per_micro_batch(op.slot.kind)) {
    return unit_name(job, op.slot.owner);
  }
  return op.slot.owner == kLoader ? "batch" : block_name(job, op.slot.owner);
}

/// What the blocks of the layers leave, followed through a plan by one micro-batch.
class LayerFollower {
 public:
  LayerFollower(const Job& job, int mb) : job_(job), mb_(mb) {
    const auto& layers = job.model().layers;
    layer_of_.assign(job.model().blocks.size(), -1);
    for (size_t layer = 0; layer < layers.size(); ++layer) {
      for (int block = layers[layer].blocks.begin; block < layers[layer].blocks.end; ++block) {
        layer_of_[static_cast<size_t>(block)] = static_cast<int>(layer);
      }
      ReportLayer& entry = layers_.emplace_back();
      entry.name = layers[layer].name;
      entry.full_bytes = full_bytes(layers[layer].blocks);
    }
    modes_.resize(layers.size());
  }

  void follow(const Op& op, const TimelineOp& timed) {
    if (op.kind == OpKind::kDrop && op.slot.mb == mb_ && op.tier == TierId::kDevice) {
      held_.erase(op.slot);
    } else if (op.kind == OpKind::kForward && op.mb == mb_) {
      forward(op, timed.end - timed.begin);
    } else if (op.kind == OpKind::kBackward && op.mb == mb_) {
      turn();
      if (ReportLayer* layer = layer_of(op.block); layer != nullptr && leans_.contains(op.block)) {
        layer->seconds += job_.model().blocks[static_cast<size_t>(op.block)].lean_seconds;
      }
    }
  }

  std::vector<ReportLayer> finish() {
    turn();
    std::erase_if(layers_, [](const ReportLayer& layer) { return layer.choice.empty(); });
    return std::move(layers_);
  }

 private:
  ReportLayer* layer_of(int block) {
    const int layer = layer_of_[static_cast<size_t>(block)];
    return layer < 0 ? nullptr : &layers_[static_cast<size_t>(layer)];
  }

  void forward(const Op& op, double seconds) {
    if (op.tape == TapeMode::kLean) {
      leans_.insert(op.block);
    } else {
      leans_.erase(op.block);
    }
    if (!ran_.insert(op.block).second) {
      turn();
    }
    ReportLayer* layer = layer_of(op.block);
    if (layer == nullptr) {
      return;
    }
    if (turned_) {
      layer->seconds += seconds;
      return;
    }
    modes_[static_cast<size_t>(layer_of_[static_cast<size_t>(op.block)])].insert(op.tape);
    if (op.tape != TapeMode::kNone) {
      const Slot tape{.kind = SlotKind::kTape, .owner = op.block, .mb = mb_};
      held_[tape] = job_.size(tape, op.tape);
    }
    for (const int index : job_.read_values(op.block)) {
      if (op.yields.contains(index)) {
        const Slot value{.kind = SlotKind::kValue, .owner = op.block, .index = index, .mb = mb_};
        held_[value] = job_.size(value);
      }
    }
  }

  /// The micro-batch's first BACKWARD, or the rerun before it: what is held now was left for them.
  void turn() {
    if (std::exchange(turned_, true)) {
      return;
    }
    for (const auto& [slot, bytes] : held_) {
      if (ReportLayer* layer = slot.owner < 0 ? nullptr : layer_of(slot.owner)) {
        layer->bytes += bytes;
      }
    }
    for (size_t layer = 0; layer < layers_.size(); ++layer) {
      const std::set<TapeMode>& modes = modes_[layer];
      if (!modes.empty()) {
        layers_[layer].choice = modes.size() > 1 ? "mixed" : choice(*modes.begin(), layer);
      }
    }
  }

  std::string choice(TapeMode mode, size_t layer) const {
    const BlockRange blocks = job_.model().layers[layer].blocks;
    if (!job_.differentiable(blocks.end - 1)) {
      return "frozen";
    }
    return mode == TapeMode::kFull ? "kept" : mode == TapeMode::kLean ? "lean" : "recomputed";
  }

  /// Tapes, and the values that they share storage with.
  int64_t full_bytes(BlockRange blocks) const {
    int64_t bytes = 0;
    for (int block = blocks.begin; block < blocks.end; ++block) {
      if (!job_.differentiable(block)) {
        continue;
      }
      bytes += job_.model().blocks[static_cast<size_t>(block)].full_bytes;
      for (const int index : job_.read_values(block)) {
        const ValueRef value{block, index};
        if (std::ranges::any_of(job_.readers(value), [&](int reader) {
              if (reader == job_.model().terminal()) { // its backward is in its FORWARD
                return false;
              }
              const BlockCost& cost = job_.model().blocks[static_cast<size_t>(reader)];
              const auto& saves = cost.saves ? *cost.saves : cost.reads;
              return std::ranges::find(saves, value) != saves.end();
            })) {
          bytes += job_.size({.kind = SlotKind::kValue, .owner = block, .index = index, .mb = mb_});
        }
      }
    }
    return bytes;
  }

  const Job& job_;
  int mb_;
  std::vector<int> layer_of_; // by block; -1: of none
  std::vector<ReportLayer> layers_;
  std::vector<std::set<TapeMode>> modes_; // of the first FORWARDs, by layer
  std::map<Slot, int64_t> held_;
  std::set<int> ran_; // blocks
  std::set<int> leans_; // blocks whose latest tape is lean
  bool turned_ = false;
};

} // namespace

void add_step(Report& report, const Job& job, const StepPlan& plan, const Timeline& timeline) {
  check(plan.size() == timeline.ops.size(), "a timeline of another plan");
  LayerFollower layers(job, 0);
  std::set<std::pair<int, int>> ran; // block, micro-batch
  report.ops.clear();
  report.ops.reserve(plan.size());
  for (size_t index = 0; index < plan.size(); ++index) {
    const Op& op = plan[index];
    const TimelineOp& timed = timeline.ops[index];
    layers.follow(op, timed);
    const bool again = op.kind == OpKind::kForward && !ran.emplace(op.block, op.mb).second;
    report.ops.push_back(
        {.text = to_text(op),
         .kind = again ? "recompute" : lower(to_text(op.kind)),
         .subject = subject(job, op),
         .lane = timed.lane,
         .begin_s = timed.begin,
         .end_s = timed.end,
         .bytes = timed.bytes});
  }
  report.layers = layers.finish();
  report.summary.predicted_peak_bytes = timeline.rank.peak[TierId::kDevice];
  report.summary.predicted_step_s = timeline.seconds;
  report.summary.recompute_share = timeline.rank.recompute_share();
}

void add_measured(Report& report, const std::vector<TracedOp>& ops) {
  check(ops.size() == report.ops.size(), "{} of {} operations", ops.size(), report.ops.size());
  report.measured.clear();
  for (const TracedOp& op : ops) {
    report.measured.push_back({.begin_s = op.begin_s, .end_s = op.end_s, .bytes = op.peak_bytes});
  }
}

} // namespace palimpsest
