#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/device/rss.h>
#include <palimpsest/launcher/cli/plan_table.h>
#include <palimpsest/launcher/cli/progress.h>
#include <palimpsest/launcher/cli/train_verb.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/run.h>

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  std::string dump_gradients;
};

void train(const TrainOptions& options) {
  const int64_t baseline = current_rss();
  Run run(load_config(options.config, options.overrides));
  const bool quiet = run.config().logging().quiet();
  if (!quiet) {
    std::cout << describe_run(run) << describe_memory(run.full_report()) << std::flush;
  }
  if (!options.dump_gradients.empty()) {
    run.dump_gradients(options.dump_gradients);
  }
  run.prepare();
  Progress progress(
      run.batches().step_count(), quiet ? 0 : run.config().logging().every(), std::cout);
  run.train({&progress});
  progress.require_update();
  const std::filesystem::path folder = run.write_model();
  std::cout << progress.summary(run.full_report(), baseline) << "model: " << folder.string()
            << "\n";
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
  verb->footer(
      examples("palimpsest train run.yaml\n"
               "palimpsest train run.yaml training.steps=100 activation_checkpointing=full\n"
               "palimpsest train run.yaml --dump-gradients=gradients.safetensors"));
  verb->callback([options] { train(*options); });
}

} // namespace palimpsest
