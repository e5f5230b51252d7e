#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/show.h>
#include <palimpsest/core/device/rss.h>
#include <palimpsest/launcher/cli/plan_table.h>
#include <palimpsest/launcher/cli/progress.h>
#include <palimpsest/launcher/cli/rank_session.h>
#include <palimpsest/launcher/cli/train_verb.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/parallel/comm/fingerprint.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <iostream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string dump_gradients;
  bool allow_change = false;
  RankFlags rank;
};

/// What must be alike on all ranks: another program or config on one of them would hang or, worse,
/// train something else.
void compare_ranks(Run& run) {
  Communicator* world = run.ranks().world();
  if (world == nullptr) {
    return;
  }
  std::map<std::string, std::string> facts = {
      {"build", PALIMPSEST_VERSION},
      {"model", run.model().description()},
      {"plan", std::to_string(run.plans().signature(run.micro_batches()))}};
  int line = 0;
  std::istringstream config(config_text(run.config(), run.ranks().size()));
  for (std::string text; std::getline(config, text); ++line) {
    facts[fmt::format("config, line {}", line)] = text;
  }
  require_same(*world, facts);
}

void train_rank(
    const TrainOptions& options,
    const RunConfig& config,
    RankSession& session,
    Ranks& ranks) {
  const int64_t baseline = current_rss();
  Run run(config, ranks);
  compare_ranks(run);
  // Ranks that have a log of their own (launch) tell what they do, others leave the screen to rank 0.
  const bool silent = !ranks.leads() && session.environment().launcher_pid == 0;
  std::ostream nowhere(nullptr);
  std::ostream& out = silent ? nowhere : std::cout;
  const bool quiet = config.logging().quiet();
  if (!quiet) {
    out << describe_run(run) << describe_memory(run.full_report())
        << describe_traffic(run.full_plan()) << std::flush;
  }
  if (!options.dump_gradients.empty()) {
    run.dump_gradients(options.dump_gradients);
  }
  run.prepare(options.allow_change);
  for (const std::string& note : run.start_notes()) {
    out << note << std::endl;
  }
  Progress progress(run.batches().step_count(), quiet ? 0 : config.logging().every(), out);
  if (!run.train({&progress, &session.status()})) {
    out << fmt::format(
               "stopped after step {} as asked; the same command goes on from {}",
               run.position().step,
               run.checkpoint().string())
        << std::endl;
    throw ExitCode(kStoppedExitCode);
  }
  progress.require_update();
  const std::filesystem::path folder = run.write_model();
  out << progress.summary(run.full_report(), baseline);
  if (!run.checkpoint().empty()) {
    out << "checkpoint: " << run.checkpoint().string() << "\n";
  }
  out << "model: " << folder.string() << "\n";
}

void train(const TrainOptions& options) {
  const RunConfig config = load_config(options.config, options.overrides);
  RankSession session(options.rank, config);
  session.run([&](Ranks& ranks) { train_rank(options, config, session, ranks); });
}

} // namespace

void add_train_verb(CLI::App& program) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* verb =
      program.add_subcommand("train", "Trains a model; writes metrics.jsonl and model/.");
  verb->add_option("config", options->config, "YAML or JSON file")->required();
  verb->add_option("overrides", options->overrides, "key=value, with dotted keys");
  verb->add_option(
      "--dump-gradients",
      options->dump_gradients,
      "Write the first step's gradients, before clipping, to this safetensors file");
  verb->add_flag(
      "--allow-change",
      options->allow_change,
      "Resume although the config has changed in what it means");
  add_rank_flags(*verb, options->rank);
  verb->footer(
      examples("palimpsest train run.yaml\n"
               "palimpsest launch -n 4 train run.yaml parallel.zero=2\n"
               "palimpsest train run.yaml training.steps=100 activation_checkpointing=full\n"
               "palimpsest train run.yaml --dump-gradients=gradients.safetensors"));
  verb->callback([options] { train(*options); });
}

} // namespace palimpsest
