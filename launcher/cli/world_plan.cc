#include <palimpsest/launcher/cli/world_plan.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/plan/device_room.h>
#include <palimpsest/launcher/compose/planning.h>

#include <fmt/format.h>
#include <google/protobuf/util/json_util.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <ostream>

namespace palimpsest {
namespace {

constexpr int kLayouts = 10;
constexpr int kLargestWorld = 1 << 20;

std::string bytes_text(double bytes) {
  return format_bytes(static_cast<int64_t>(bytes));
}

void fill(WorldPlanReport::Layout& report, const WorldLayout& layout) {
  report.set_ranks(layout.mesh.world());
  report.set_zero(layout.zero);
  report.set_shard(layout.mesh.shard);
  report.set_replicate(layout.mesh.replicate);
  report.set_micro_batch(static_cast<int32_t>(layout.micro_batch));
  report.set_accumulation(static_cast<int32_t>(layout.accumulation));
  report.set_global_batch(static_cast<double>(layout.global_batch()));
  report.set_recompute(layout.choice.policy);
  report.set_recompute_share(layout.rank.recompute_share());
  report.set_step_time_s(layout.choice.cost.seconds);
  report.set_tokens_per_second(layout.tokens_per_second);
  report.set_mfu(layout.mfu);
  report.set_peak_device_bytes(static_cast<double>(layout.choice.cost.peak));
  const auto parts = peak_parts(layout.rank);
  report.set_parameter_bytes(static_cast<double>(parts[0].second));
  report.set_gradient_bytes(static_cast<double>(parts[1].second));
  report.set_optimizer_bytes(static_cast<double>(parts[2].second));
  report.set_activation_bytes(static_cast<double>(parts[3].second));
  report.set_workspace_bytes(static_cast<double>(parts[4].second));
  report.set_bound(std::string(to_text(layout.bound)));
  report.set_bound_share(layout.bound_share);
}

std::string mesh_text(const WorldPlanReport::Layout& layout) {
  return layout.shard() > 1 ? fmt::format("{} x {}", layout.shard(), layout.replicate())
                            : fmt::format("- x {}", layout.replicate());
}

std::string line(const std::array<std::string, 9>& cells) {
  return fmt::format(
      "{:>4}  {:<10}  {:>12}  {:>11}  {:>6}  {:>9}  {:>9}  {:>9}  {}\n",
      cells[0],
      cells[1],
      cells[2],
      cells[3],
      cells[4],
      cells[5],
      cells[6],
      cells[7],
      cells[8]);
}

std::string layout_line(const WorldPlanReport::Layout& layout) {
  return line(
      {std::to_string(layout.zero()),
       mesh_text(layout),
       fmt::format("{} x {}", layout.micro_batch(), layout.accumulation()),
       fmt::format("{:.0f}", layout.tokens_per_second()),
       fmt::format("{:.1f} %", 100 * layout.mfu()),
       bytes_text(layout.peak_device_bytes()),
       fmt::format("{:.1f} %", 100 * layout.recompute_share()),
       fmt::format("{:.4g} s", layout.step_time_s()),
       fmt::format("{} {:.0f} %", layout.bound(), 100 * layout.bound_share())});
}

std::string smallest_text(const WorldPlanReport& report) {
  if (!report.has_smallest()) {
    return fmt::format("smallest      no world of up to {} ranks can train it\n", kLargestWorld);
  }
  const WorldPlanReport::Layout& layout = report.smallest();
  const int node = static_cast<int>(report.hardware().ranks_per_node());
  const std::string nodes = node > 1
      ? fmt::format(" ({} of {})", counted((layout.ranks() + node - 1) / node, "node"), node)
      : "";
  return fmt::format(
      "smallest      {}{}: zero {}, one sample each; {} of {} a rank, {:.0f} tokens/s\n",
      counted(layout.ranks(), "rank"),
      nodes,
      layout.zero(),
      bytes_text(layout.peak_device_bytes()),
      bytes_text(report.budget_bytes()),
      layout.tokens_per_second());
}

/// Why there is no layout, and from how many bytes on there is one.
UserError no_room(
    const WorldSearch& search,
    const WorldLayout& leanest,
    int64_t least,
    const std::optional<WorldLayout>& smallest) {
  const WorldRequest& request = search.request();
  const int64_t memory = request.hardware.memory();
  std::string what_to_do;
  if (request.budget < memory && least <= memory) {
    what_to_do = "; give that much";
  }
  if (smallest) {
    what_to_do += fmt::format(
        "; {} can train it with what there is", counted(smallest->mesh.world(), "rank"));
  }
  return UserError(
      "{}: no layout of {} fits {} a rank, and the leanest takes {} ({} bytes), by zero {} with {} "
      "at a time: {}{}",
      request.budget < memory ? "memory.device_budget" : "--hardware",
      counted(leanest.mesh.world(), "rank"),
      format_bytes(request.budget),
      format_bytes(least),
      least,
      leanest.zero,
      counted(leanest.micro_batch, "sample"),
      largest_parts(leanest.rank),
      what_to_do);
}

} // namespace

WorldPlanReport world_plan_report(
    const WorldSearch& search,
    int world,
    const std::vector<WorldLayout>& layouts,
    const WorldLayout* smallest) {
  const WorldRequest& request = search.request();
  WorldPlanReport report;
  report.set_model(request.description);
  *report.mutable_hardware() = request.hardware;
  report.set_world(world);
  report.set_tokens_per_sample(static_cast<int32_t>(request.tokens));
  report.set_budget_bytes(static_cast<double>(request.budget));
  for (const WorldLayout& layout : layouts) {
    fill(*report.add_layouts(), layout);
  }
  if (smallest != nullptr) {
    fill(*report.mutable_smallest(), *smallest);
  }
  WorldPlanReport::Search& counts = *report.mutable_search();
  counts.set_layouts(search.counts().layouts);
  counts.set_without_room(search.counts().without_room);
  counts.set_too_slow(search.counts().too_slow);
  counts.set_searched(search.counts().searched);
  return report;
}

std::string describe_world(const WorldPlanReport& report) {
  const Hardware& hardware = report.hardware();
  const WorldPlanReport::Search& search = report.search();
  std::string text = fmt::format("model         {}\n", report.model());
  text += fmt::format(
      "hardware      {} of {}, {} each{}\n",
      counted(report.world(), "rank"),
      hardware.name(),
      bytes_text(report.budget_bytes()),
      hardware.ranks_per_node() > 1 ? fmt::format(", {} a node", hardware.ranks_per_node()) : "");
  text += fmt::format("samples       of {} tokens\n", report.tokens_per_sample());
  text += fmt::format(
      "search        {}: {} without room, {} too slow even if nothing ran again, {} searched; "
      "{:.1f} s\n",
      counted(search.layouts(), "layout"),
      search.without_room(),
      search.too_slow(),
      search.searched(),
      search.seconds());
  text += smallest_text(report);
  if (report.layouts().empty()) {
    return text;
  }
  text += "\n" +
      line(
              {"zero",
               "shard x rep",
               "micro x acc",
               "tokens/s",
               "MFU",
               "peak",
               "recompute",
               "step",
               "busiest lane"});
  for (const WorldPlanReport::Layout& layout : report.layouts()) {
    text += layout_line(layout);
  }
  return text;
}

void plan_world(const WorldPlanOptions& options, std::ostream& out) {
  const Hardware hardware = load_hardware(options.hardware);
  WorldSearch search(world_request(load_config(options.config, options.overrides), hardware));
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<WorldLayout> layouts = search.best(options.world, kLayouts);
  const std::optional<WorldLayout> smallest = search.smallest(kLargestWorld);
  WorldPlanReport report =
      world_plan_report(search, options.world, layouts, smallest ? &*smallest : nullptr);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  report.mutable_search()->set_seconds(took.count());
  std::optional<WorldLayout> leanest;
  int64_t least = 0;
  if (layouts.empty()) {
    leanest = search.leanest(options.world);
    least = least_budget(leanest->choice.cost.peak);
    report.set_least_budget_bytes(static_cast<double>(least));
  }
  if (options.json) {
    google::protobuf::util::JsonPrintOptions style;
    style.preserve_proto_field_names = true;
    style.add_whitespace = true;
    style.always_print_primitive_fields = true;
    std::string text;
    const auto status = google::protobuf::util::MessageToJsonString(report, &text, style);
    check(status.ok(), "a plan has no JSON: {}", std::string(status.message()));
    out << text;
  } else {
    out << describe_world(report);
  }
  if (leanest) {
    throw no_room(search, *leanest, least, smallest);
  }
}

} // namespace palimpsest
