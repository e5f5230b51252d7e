#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/launcher/cli/output_files.h>
#include <palimpsest/launcher/cli/plan_table.h>
#include <palimpsest/launcher/cli/plan_verb.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/cli/world_plan.h>
#include <palimpsest/launcher/compose/chain_plan.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/launcher/compose/run_report.h>
#include <palimpsest/launcher/launch/threads.h>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>

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
  std::string save_chain;
  std::string hardware;
  ChainPlanOptions chain;
};

void print_plan(const PlanVerbOptions& options) {
  require_different_files(
      "plan",
      {{"the config", options.config},
       {"--html", options.html},
       {"--save-chain", options.save_chain}});
  std::optional<AtomicFile> page; // opened first: it is known now whether it can be written
  if (!options.html.empty()) {
    page.emplace(options.html);
  }
  std::optional<AtomicFile> chain;
  if (!options.save_chain.empty()) {
    chain.emplace(options.save_chain);
  }
  // As `launch -n` would share out this machine's processors: workspaces depend on them.
  const auto processors = static_cast<int64_t>(allowed_processors().size());
  Ranks ranks = Ranks::planned(options.world, threads_per_rank(processors, options.world));
  Run run(load_config(options.config, options.overrides), ranks);
  if (chain) {
    chain->write(measured_chain(run.plans().cost()));
    chain->commit();
  }
  if (options.text) {
    std::cout << to_text(run.full_plan().plan);
    return;
  }
  std::cout << describe_run(run) << describe_memory(run.full_report())
            << describe_traffic(run.full_plan()) << describe_work(run);
  if (page) {
    page->write(to_html(
        plan_report(run, std::filesystem::path(options.config).filename(), run_facts(run))));
    page->commit();
    std::cout << "report: " << options.html << "\n";
  }
}

} // namespace

void add_plan_verb(CLI::App& program) {
  const auto options = std::make_shared<PlanVerbOptions>();
  CLI::App* verb = program.add_subcommand(
      "plan", "Measures a model's blocks and prints what a step will hold and compute.");
  CLI::Option* config = verb->add_option("config", options->config, "YAML or JSON file");
  verb->add_option("overrides", options->overrides, "key=value, with dotted keys");
  CLI::Option* world =
      verb->add_option("--world", options->world, "Plan rank 0 of a job of so many ranks")
          ->check(CLI::Range(1, 1 << 20));
  CLI::Option* text =
      verb->add_flag("--text", options->text, "Print the plan's operations, one a line");
  CLI::Option* html =
      verb->add_option("--html", options->html, "Write the step as a page to this file")
          ->excludes(text);
  CLI::Option* save = verb->add_option(
      "--save-chain", options->save_chain, "Write the measured costs as a chain to this JSON file");
  CLI::Option* hardware = verb->add_option(
      "--hardware",
      options->hardware,
      fmt::format(
          "Search the fastest layouts of a job on this hardware: a file, or one of {}",
          fmt::join(hardware_names(), ", ")));
  hardware->needs(config);
  for (CLI::Option* of_a_run : {text, html, save}) {
    hardware->excludes(of_a_run);
  }
  CLI::Option* chain =
      verb->add_option("--chain", options->chain.chain, "Plan this chain, a JSON file, instead");
  for (CLI::Option* of_a_config : {config, world, text, html, save}) {
    chain->excludes(of_a_config);
  }
  CLI::Option* budget =
      verb->add_option("--budget", options->chain.budget, "Bytes that the chain's plan may take");
  chain->needs(budget);
  budget->needs(chain);
  verb->add_option("--planner", options->chain.planner, "Who plans the chain")
      ->capture_default_str()
      ->needs(chain);
  verb->add_flag("--json", options->chain.json, "Print the plan of --chain or --hardware as JSON");
  verb->footer(
      examples("palimpsest plan run.yaml\n"
               "palimpsest plan run.yaml activation_checkpointing=sqrt\n"
               "palimpsest plan run.yaml --world 8 parallel.zero=3\n"
               "palimpsest plan run.yaml --text\n"
               "palimpsest plan run.yaml --save-chain chain.json\n"
               "palimpsest plan run.yaml --hardware h100-80 --world 1024\n"
               "palimpsest plan --chain chain.json --planner revolve --budget 2GiB --json\n"
               "palimpsest plan run.yaml --html report.html"));
  verb->callback([options] {
    if (!options->chain.chain.empty()) {
      plan_chain(options->chain, std::cout);
    } else if (!options->hardware.empty()) {
      plan_world(
          {.config = options->config,
           .overrides = options->overrides,
           .hardware = options->hardware,
           .world = options->world,
           .json = options->chain.json},
          std::cout);
    } else if (options->chain.json) {
      throw UserError("plan: --json prints what --chain or --hardware plans; give one of them");
    } else if (!options->config.empty()) {
      print_plan(*options);
    } else {
      throw UserError("plan: give a config, or --chain FILE with --budget BYTES");
    }
  });
}

} // namespace palimpsest
