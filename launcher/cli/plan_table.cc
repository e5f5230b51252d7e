#include <palimpsest/launcher/cli/plan_table.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/plan/closed_forms.h>
#include <palimpsest/core/plan/traffic.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/launcher/compose/search.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

std::string row(std::string_view name, const std::string& text) {
  return fmt::format("{:<14}{}\n", name, text);
}

bool in_layers(const ModelCost& cost, BlockRange blocks) {
  return std::ranges::any_of(cost.layers, [&](const LayerCost& layer) {
    return layer.blocks.begin < blocks.end && blocks.begin < layer.blocks.end;
  });
}

/// The tapes that the layers' blocks leave, by the first forward or the last that runs again.
void add_tapes(const ModelCost& cost, const Segments& segments, std::set<TapeMode>& tapes) {
  for (const Segment& segment : segments) {
    if (segment.rerun.empty() && in_layers(cost, segment.blocks)) {
      tapes.insert(segment.tape);
    }
    add_tapes(cost, segment.rerun, tapes);
  }
}

/// "lean and full": what the layers' blocks leave for their backward.
std::string tapes_text(const ModelCost& cost, const Segments& segments) {
  std::set<TapeMode> tapes;
  add_tapes(cost, segments, tapes);
  for (const LayerCost& layer : cost.layers) {
    for (int block = layer.blocks.begin; block < layer.blocks.end; ++block) {
      if (std::ranges::none_of(
              segments, [&](const Segment& one) { return one.blocks.contains(block); })) {
        tapes.insert(TapeMode::kFull);
      }
    }
  }
  std::vector<std::string_view> names;
  for (const TapeMode tape : tapes) {
    names.push_back(to_text(tape));
  }
  return fmt::format("{}", fmt::join(names, " and "));
}

/// What the config's policy says.
std::string setting_text(const RunConfig::ActivationCheckpointing& settings) {
  std::string text = settings.policy();
  if (settings.has_n()) {
    text += fmt::format(", n {}", settings.n());
  }
  if (settings.has_segments()) {
    text += ", " + counted(settings.segments(), "segment");
  }
  if (settings.has_count()) {
    text += fmt::format(", {} kept", counted(settings.count(), "layer"));
  }
  return text + ", " + settings.tape() + " tapes";
}

/// "auto: uniform, 4 segments, lean tapes; micro-batches of 2; budget 8.00 GiB".
std::string policy_text(Run& run) {
  const RunConfig::ActivationCheckpointing& settings = run.config().activation_checkpointing();
  std::string text;
  if (needs_budget(settings.policy())) {
    const StepChoice& choice = run.plans().choice(run.micro_batches());
    text = settings.policy() == choice.policy ? "" : settings.policy() + ": ";
    text += choice.policy;
    if (needs_budget(choice.policy)) { // a planner, which decides tapes block by block
      text += fmt::format(", {} tapes", tapes_text(run.plans().cost(), choice.segments));
    }
  } else {
    text = setting_text(settings);
  }
  if (const auto budget = run.plans().budget()) {
    text +=
        fmt::format("; micro-batches of {}; budget {}", run.batch().micro, format_bytes(*budget));
  }
  return text;
}

/// Bytes that layer `layer` leaves for its backward with all tapes.
int64_t layer_tape(const ModelCost& cost, const LayerCost& layer) {
  int64_t bytes = 0;
  for (int block = layer.blocks.begin; block < layer.blocks.end; ++block) {
    const BlockCost& entry = cost.blocks[static_cast<size_t>(block)];
    bytes += entry.full_bytes;
    if (block + 1 < layer.blocks.end) {
      for (const int64_t value : entry.value_bytes) {
        bytes += value;
      }
    }
  }
  return bytes;
}

/// Bytes of what a layer reads first.
int64_t input_bytes(const ModelCost& cost, const LayerCost& layer) {
  const ValueRef& read = cost.blocks[static_cast<size_t>(layer.blocks.begin)].reads.front();
  return read.producer == kLoader ? cost.batch_bytes
                                  : cost.blocks[static_cast<size_t>(read.producer)]
                                        .value_bytes[static_cast<size_t>(read.index)];
}

/// What a block's first FORWARD leaves.
TapeMode tape_of(int block, const Segments& segments) {
  const auto segment = std::ranges::find_if(
      segments, [&](const Segment& candidate) { return candidate.blocks.contains(block); });
  return segment == segments.end() ? TapeMode::kFull : segment->tape;
}

/// One sign a layer: what its forward leaves for the backward; a bar ends what runs again as one.
std::string layer_map(const ModelCost& cost, const Segments& segments) {
  constexpr std::array kSigns = {'.', '+', '#'}; // none, lean, full
  std::string map;
  for (const LayerCost& layer : cost.layers) {
    const TapeMode tape = tape_of(layer.blocks.begin, segments);
    bool mixed = false;
    for (int block = layer.blocks.begin; block < layer.blocks.end; ++block) {
      mixed = mixed || tape_of(block, segments) != tape;
    }
    map += mixed ? '~' : kSigns.at(static_cast<size_t>(tape));
    const bool ends = std::ranges::any_of(segments, [&](const Segment& segment) {
      return segment.tape == TapeMode::kNone && segment.blocks.end == layer.blocks.end;
    });
    map += ends ? "|" : "";
  }
  return map + "   (# kept, + lean tape, . run again, ~ blocks of both; | ends a segment)";
}

/// "4: 2 replicas x 2 shards of optimizer states and gradients (zero: 2)".
std::string ranks_text(const Run& run) {
  const Mesh& mesh = run.mesh();
  const int64_t zero = run.config().parallel().zero();
  std::vector<std::string> axes;
  if (mesh.replicate > 1) {
    axes.push_back(fmt::format("{} replicas", mesh.replicate));
  }
  if (mesh.shard > 1) {
    constexpr std::array kStates = {"optimizer states", "gradients", "parameters"};
    axes.push_back(fmt::format(
        "{} shards of {} (zero: {})",
        mesh.shard,
        fmt::join(kStates.begin(), kStates.begin() + zero, ", "),
        zero));
  }
  const char* sums = run.config().training().reproducible() ? "; sums are reproducible" : "";
  return fmt::format("{}: {}{}", run.ranks().size(), fmt::join(axes, " x "), sums);
}

/// "every 100 steps and at the end, on 24 held-out samples; peak 1.20 GiB".
std::string evaluation_text(Run& run) {
  const RunConfig::Evaluation& config = run.config().evaluation();
  return fmt::format(
      "{}at the end, on {}; peak {}",
      config.has_every() ? fmt::format("every {} and ", counted(config.every(), "step")) : "",
      counted(run.held_out(), "held-out sample"),
      format_bytes(run.plans().evaluation().report.peak(TierId::kDevice)));
}

std::string sum_text(const char* name, const TrafficSum& sum) {
  return fmt::format(
      "{} {} ({})", sum.operations, name, format_bytes(static_cast<int64_t>(sum.bytes)));
}

/// Whether layers are kept or run again as wholes, once: what the closed forms are about.
bool is_layered(const ModelCost& cost, const Segments& segments) {
  return std::ranges::all_of(segments, [&](const Segment& segment) {
    const bool nested = std::ranges::any_of(
        segment.rerun, [](const Segment& part) { return part.tape == TapeMode::kNone; });
    return segment.tape != TapeMode::kNone ||
        (!nested && std::ranges::all_of(cost.layers, [&](const LayerCost& layer) {
             return segment.blocks.contains(layer.blocks.begin) ==
                 segment.blocks.contains(layer.blocks.end - 1);
           }));
  });
}

} // namespace

std::vector<std::pair<std::string, std::string>> run_facts(Run& run) {
  std::vector<std::pair<std::string, std::string>> facts;
  facts.emplace_back("model", run.model().description());
  facts.emplace_back(
      "batch",
      fmt::format(
          "{} a step: micro-batches of up to {}, {} accumulated; {}",
          counted(run.batch().global, "sample"),
          run.batch().micro,
          run.micro_batches(),
          counted(run.batches().step_count(), "step")));
  if (run.held_out() > 0) {
    facts.emplace_back("evaluation", evaluation_text(run));
  }
  if (run.ranks().size() > 1) {
    facts.emplace_back("ranks", ranks_text(run));
  }
  facts.emplace_back("checkpointing", policy_text(run));
  for (const std::string& note : run.notes()) {
    facts.emplace_back("note", note);
  }
  return facts;
}

std::string describe_run(Run& run) {
  std::string text;
  for (const auto& [name, fact] : run_facts(run)) {
    text += row(name, fact);
    if (name == "checkpointing") {
      text +=
          row("layers",
              layer_map(run.plans().cost(), run.plans().choice(run.micro_batches()).segments));
    }
  }
  return text;
}

std::string describe_memory(const PlanReport& report) {
  const int64_t peak = report.peak(TierId::kDevice);
  std::string text = "predicted peak on the device\n";
  for (const auto& [name, bytes] : peak_parts(report.ranks.front())) {
    text += fmt::format(
        "  {:<12}{:>10}  {:3.0f} %\n",
        name,
        format_bytes(bytes),
        100.0 * static_cast<double>(bytes) / static_cast<double>(peak));
  }
  return text + fmt::format("  {:<12}{:>10}\n", "peak", format_bytes(peak));
}

std::string describe_traffic(const PlannedStep& step) {
  const PlanTraffic traffic = plan_traffic(step.plan, step.job);
  std::vector<std::string> parts;
  for (const auto& [name, sum] :
       {std::pair("gathers", traffic.gathers),
        std::pair("shard sums", traffic.shard_sums),
        std::pair("replica sums", traffic.replica_sums),
        std::pair("publishes", traffic.publishes)}) {
    if (sum.operations > 0) {
      parts.push_back(sum_text(name, sum));
    }
  }
  return parts.empty() ? "" : row("sends", fmt::format("{} a step", fmt::join(parts, ", ")));
}

std::string describe_work(Run& run) {
  const PlanReport& report = run.full_report();
  const ModelCost& cost = run.plans().cost();
  const RankReport& rank = report.ranks.front();
  const double all = rank.forward_flops + rank.backward_flops + rank.recompute_flops;
  std::string text =
      row("work",
          fmt::format(
              "{:.4g} GFLOP a step: forward {:.4g}, backward {:.4g}, recompute {:.4g} ({:.1f} % of "
              "all)",
              all / 1e9,
              rank.forward_flops / 1e9,
              rank.backward_flops / 1e9,
              rank.recompute_flops / 1e9,
              100 * rank.recompute_share()));
  text +=
      row("blocks",
          fmt::format(
              "{} executed, {} of them again; about {:.3f} s a step",
              counted(rank.forwards, "forward"),
              rank.reruns,
              report.seconds));
  const int layers = static_cast<int>(cost.layers.size());
  if (layers == 0 || !is_layered(cost, run.plans().choice(run.micro_batches()).segments)) {
    return text;
  }
  const LayerCost& middle = cost.layers[static_cast<size_t>(layers) / 2];
  const int per_layer = middle.blocks.size();
  const int rerun_layers =
      static_cast<int>(rank.reruns) / std::max(1, run.micro_batches() * per_layer);
  const int kept = layers - rerun_layers;
  const int64_t tape = layer_tape(cost, middle);
  const int64_t input = input_bytes(cost, middle);
  text +=
      row("closed forms",
          fmt::format(
              "N = {}, K = {} kept: {} layer executions a micro-batch (3N - K); tapes {} = {} "
              "of N a = {} ({:.0f} %)",
              counted(layers, "layer"),
              kept,
              executions(layers, kept),
              kept == 0 ? "a" : "K a", // without any, one layer's while it runs again
              format_bytes(tape_bytes(kept, tape)),
              format_bytes(tape_bytes(layers, tape)),
              100.0 * static_cast<double>(tape_bytes(kept, tape)) /
                  static_cast<double>(tape_bytes(layers, tape))));
  text +=
      row("",
          fmt::format(
              "best interval for layers like the middle one (input {}, tape {}): every {}",
              format_bytes(input),
              format_bytes(tape),
              counted(best_interval(layers, input, tape), "layer")));
  return text;
}

} // namespace palimpsest
