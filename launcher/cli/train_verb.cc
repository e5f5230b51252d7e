#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/device/cuda.h>
#include <palimpsest/core/device/rss.h>
#include <palimpsest/launcher/cli/output_files.h>
#include <palimpsest/launcher/cli/plan_table.h>
#include <palimpsest/launcher/cli/progress.h>
#include <palimpsest/launcher/cli/text_bar.h>
#include <palimpsest/launcher/cli/train_verb.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/rank_session.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/launcher/compose/run_report.h>
#include <palimpsest/launcher/compose/utilization.h>
#include <palimpsest/launcher/launch/threads.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <iostream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

struct TrainOptions {
  std::string config;
  std::vector<std::string> overrides;
  bool quiet = false;
  std::optional<int64_t> log_every;
  std::string dump_gradients;
  ReportFiles report;
  bool allow_change = false;
  RankFlags rank;
};

/// Overrides that have options of their own are among them.
std::vector<std::string> all_overrides(const TrainOptions& options) {
  std::vector<std::string> all = options.overrides;
  if (options.quiet) {
    all.emplace_back("logging.quiet=true");
  }
  if (options.log_every) {
    all.push_back(fmt::format("logging.every={}", *options.log_every));
  }
  return all;
}

/// For ranks that no launcher starts.
void add_rank_flags(CLI::App& verb, RankFlags& flags) {
  const std::string group = "Ranks started by hand (launch, torchrun, mpirun and srun say this)";
  verb.add_option("--rank", flags.rank, "This process's number, from 0")->group(group);
  verb.add_option("--world-size", flags.world_size, "Number of ranks")->group(group);
  verb.add_option("--local-rank", flags.local_rank, "Its number on this host")->group(group);
  verb.add_option("--local-world-size", flags.local_world_size, "Ranks on this host")->group(group);
  verb.add_option("--master-address", flags.address, "Host of rank 0")->group(group);
  verb.add_option("--master-port", flags.port, "Port at which rank 0 listens")->group(group);
}

/// What a run that was asked to stop leaves, and how to go on.
std::string stop_text(const Run& run) {
  const std::string stopped = fmt::format("stopped after step {} as asked", run.position().step);
  if (!run.saved()) {
    return stopped + "; it was not saved, since its parameters are not finite";
  }
  const RunConfig& config = run.config();
  const bool begins_anew = config.training().restart();
  const bool named = config.checkpoint().has_resume() && config.checkpoint().resume() != "auto";
  return fmt::format(
      "{}; the same command{}{} goes on from {}",
      stopped,
      begins_anew ? " with training.restart=false" : "",
      named ? " with checkpoint.resume=auto" : "",
      run.checkpoint().string());
}

/// The model that is kept beside the last one.
std::string best_text(const Run& run) {
  const EvaluationState& evaluated = run.evaluated();
  if (evaluated.best_step == 0 || !std::filesystem::exists(run.best_model())) {
    return "";
  }
  return fmt::format(
      "best model: {} (loss {:.4f} after step {})\n",
      run.best_model().string(),
      evaluated.best_loss,
      evaluated.best_step);
}

/// Of a start that was asked to stop before it did anything.
constexpr const char* kStoppedEarly =
    "stopped as asked before another step was done; the same command goes on";

/// Why there is nothing to measure or to train.
std::string finished_text(Run& run) {
  const int64_t done = run.position().step;
  return fmt::format(
      "nothing left to do{} after {}",
      done >= run.batches().step_count() ? "" : ": the run has ended early (evaluation.patience),",
      counted(done, "step"));
}

/// A run that its newest checkpoint ends.
int keep_finished(const TrainOptions& options, Run& run, Ranks& ranks, std::ostream& out) {
  for (const std::string& note : run.start_notes()) {
    out << note << std::endl;
  }
  out << finished_text(run) << std::endl;
  if (!options.dump_gradients.empty()) {
    out << "--dump-gradients: no step runs, so there are no gradients to write" << std::endl;
  }
  out << "checkpoint: " << run.checkpoint().string() << "\nmodel: " << run.model_folder().string()
      << "\n"
      << best_text(run) << std::flush;
  if (options.report.wanted()) {
    run.plans(); // with the other ranks
    ranks.together([&] {
      if (ranks.leads()) {
        RunReport(options.report, options.config, run).write(run_facts(run));
      }
    });
  }
  return 0;
}

int train_run(
    const TrainOptions& options,
    Run& run,
    RankSession& session,
    Ranks& ranks,
    int64_t baseline,
    std::ostream& out) {
  const RunConfig& config = run.config();
  const bool quiet = config.logging().quiet();
  if (!quiet) {
    out << describe_run(run) << describe_memory(run.full_report())
        << describe_traffic(run.full_plan()) << std::flush;
  }
  if (ranks.size() == 1) {
    std::vector<std::string> arguments = {"train", options.config};
    std::ranges::copy(all_overrides(options), std::back_inserter(arguments));
    const auto advice = launch_advice(cuda::device_count(), arguments);
    out << advice.value_or("") << (advice ? "\n" : "");
  }
  if (!options.dump_gradients.empty()) {
    run.dump_gradients(options.dump_gradients);
  }
  std::optional<RunReport> report;
  Utilization mfu;
  ranks.together([&] {
    mfu = model_utilization(run);
    if (ranks.leads() && options.report.wanted()) {
      report.emplace(options.report, options.config, run);
    }
  });
  run.prepare();
  for (const std::string& note : run.start_notes()) {
    out << note << std::endl;
  }
  Progress progress(run.batches().step_count(), quiet ? 0 : config.logging().every(), out, mfu);
  std::vector<Observer*> observers = {&progress, &session.status(run.position().step + 1)};
  if (report) {
    observers.push_back(&report->observer());
  }
  const int64_t begin = run.position().step;
  const bool finished = run.train(observers);
  for (const std::string& warning : run.warnings()) {
    out << "warning: " << warning << std::endl;
  }
  const auto write_report = [&] { // last: what was trained is safe by then
    ranks.together([&] {
      if (report) {
        report->write(run_facts(run));
      }
    });
  };
  if (!finished) {
    progress.interrupt();
    out << (run.position().step == begin ? kStoppedEarly : stop_text(run)) << std::endl;
    write_report();
    return kStoppedExitCode;
  }
  ranks.alike([&] { progress.require_update(); });
  out << progress.summary(run.full_report(), baseline) << std::flush;
  const std::filesystem::path folder = run.write_model();
  if (!run.checkpoint().empty()) {
    out << "checkpoint: " << run.checkpoint().string() << "\n";
  }
  out << "model: " << folder.string() << "\n" << best_text(run) << std::flush;
  write_report();
  return 0;
}

int train_rank(
    const TrainOptions& options,
    const RunConfig& config,
    RankSession& session,
    Ranks& ranks) {
  const int64_t baseline = current_rss();
  // Ranks that have a log of their own (launch) tell what they do, others leave the screen to rank 0.
  const bool silent = !ranks.leads() && session.environment().launcher_pid == 0;
  std::ostream nowhere(nullptr);
  std::ostream& out = silent ? nowhere : std::cout;
  TextBar reading(out);
  if (!config.logging().quiet()) {
    ranks.watch_reading([&reading](const std::string& name, double done) {
      reading.show(done, "reading " + name);
    });
  }
  ranks.watch_telling([&](const std::string& text) {
    reading.end();
    out << text << std::endl;
  });
  try {
    Run run(config, ranks, options.allow_change);
    reading.end();
    return run.nothing_left() ? keep_finished(options, run, ranks, out)
                              : train_run(options, run, session, ranks, baseline, out);
  } catch (const Error& error) {
    if (error.exit_code() != kStoppedExitCode) {
      throw;
    }
    reading.end();
    out << kStoppedEarly << std::endl;
    return kStoppedExitCode;
  }
}

/// What is wrong before the ranks meet is wrong for all of a host, and the first of them says it.
RunConfig load_once(const TrainOptions& options, const RankEnvironment& rank) {
  try {
    require_different_files(
        "train",
        {{"the config", options.config},
         {"--html", options.report.html},
         {"--json", options.report.json},
         {"--dump-gradients", options.dump_gradients}});
    return load_config(options.config, all_overrides(options));
  } catch (const Error& error) {
    if (rank.local_rank == 0) {
      throw;
    }
    throw ExitCode(leave_word_to_others(error));
  }
}

void train(const TrainOptions& options) {
  const RankEnvironment rank = detect_rank(current_environment(), options.rank);
  RunConfig config = load_once(options, rank);
  RankSession session(rank, config, PALIMPSEST_VERSION);
  if (session.environment().attempt > 0) { // a launcher's second try goes on from the first
    config.mutable_training()->set_restart(false);
  }
  const int code =
      session.run([&](Ranks& ranks) { return train_rank(options, config, session, ranks); });
  if (code != 0) {
    throw ExitCode(code);
  }
}

} // namespace

void add_train_verb(CLI::App& program) {
  const auto options = std::make_shared<TrainOptions>();
  CLI::App* verb = program.add_subcommand(
      "train",
      "Trains a model; writes metrics.jsonl, tensorboard/, model/ and, of the best one, best/.");
  verb->add_option("config", options->config, "YAML or JSON file")->required();
  verb->add_option("overrides", options->overrides, "key=value, with dotted keys");
  verb->add_flag("--quiet", options->quiet, "No progress: the same as logging.quiet=true");
  verb->add_option(
          "--log-every",
          options->log_every,
          "Steps between lines of progress: the same as logging.every=N")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000'000}));
  verb->add_option(
      "--dump-gradients",
      options->dump_gradients,
      "Write the first step's gradients, before clipping, to this safetensors file");
  verb->add_option(
      "--html",
      options->report.html,
      "Write the last full step, predicted and measured, as a page to this file");
  verb->add_option("--json", options->report.json, "The same as data");
  verb->add_flag(
      "--allow-change",
      options->allow_change,
      "Resume although the config has changed in what it means");
  add_rank_flags(*verb, options->rank);
  verb->footer(
      examples("palimpsest train run.yaml\n"
               "palimpsest launch -n 4 train run.yaml parallel.zero=2\n"
               "palimpsest train run.yaml training.steps=100 activation_checkpointing=full\n"
               "palimpsest train run.yaml --log-every 10 --html report.html\n"
               "palimpsest train run.yaml --dump-gradients=gradients.safetensors"));
  verb->callback([options] { train(*options); });
}

} // namespace palimpsest
