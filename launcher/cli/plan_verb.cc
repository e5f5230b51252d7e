#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/launcher/cli/plan_table.h>
#include <palimpsest/launcher/cli/plan_verb.h>
#include <palimpsest/launcher/cli/run_report.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/run.h>

#include <CLI/CLI.hpp>

#include <filesystem>
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

struct PlanVerbOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool text = false;
  std::string html;
  int world = 1;
};

void print_plan(const PlanVerbOptions& options) {
  std::optional<AtomicFile> page; // opened first: it is known now whether it can be written
  if (!options.html.empty()) {
    page.emplace(options.html);
  }
  Ranks ranks = Ranks::planned(options.world);
  Run run(load_config(options.config, options.overrides), ranks);
  if (options.text) {
    std::cout << to_text(run.full_plan().plan);
    return;
  }
  std::cout << describe_run(run) << describe_memory(run.full_report())
            << describe_traffic(run.full_plan())
            << describe_work(run.full_report(), run.plans().cost(), run.micro_batches());
  if (page) {
    page->write(to_html(plan_report(run, std::filesystem::path(options.config).filename())));
    page->commit();
    std::cout << "report: " << options.html << "\n";
  }
}

} // namespace

void add_plan_verb(CLI::App& program) {
  const auto options = std::make_shared<PlanVerbOptions>();
  CLI::App* verb = program.add_subcommand(
      "plan", "Measures a model's blocks and prints what a step will hold and compute.");
  verb->add_option("config", options->config, "YAML or JSON file")->required();
  verb->add_option("overrides", options->overrides, "key=value, with dotted keys");
  verb->add_option("--world", options->world, "Plan rank 0 of a job of so many ranks")
      ->check(CLI::Range(1, 1 << 20));
  CLI::Option* text =
      verb->add_flag("--text", options->text, "Print the plan's operations, one a line");
  verb->add_option("--html", options->html, "Write the step as a page to this file")
      ->excludes(text);
  verb->footer(
      examples("palimpsest plan run.yaml\n"
               "palimpsest plan run.yaml activation_checkpointing=sqrt\n"
               "palimpsest plan run.yaml --world 8 parallel.zero=3\n"
               "palimpsest plan run.yaml --text\n"
               "palimpsest plan run.yaml --html report.html"));
  verb->callback([options] { print_plan(*options); });
}

} // namespace palimpsest
