#include <palimpsest/launcher/cli/eval_verb.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/base/words.h>
#include <palimpsest/launcher/cli/output_files.h>
#include <palimpsest/launcher/cli/text_bar.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/evaluation_target.h>
#include <palimpsest/launcher/compose/rank_session.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <iostream>
#include <memory>
#include <optional>
#include <string>

namespace palimpsest {
namespace {

std::string to_json(const EvaluationRecord& record, const EvalTarget& target) {
  nlohmann::ordered_json json = {{"model", target.model}, {"loss", record.loss}};
  if (record.perplexity) {
    json["perplexity"] = *record.perplexity;
  }
  if (target.request.checkpoint) {
    json["step"] = record.step;
  }
  json["samples"] = record.samples;
  json["targets"] = record.targets;
  json["time_s"] = record.time_s;
  json["targets_per_s"] = static_cast<double>(record.targets) / record.time_s;
  return json.dump(2) + "\n";
}

std::string to_text(const EvaluationRecord& record) {
  std::string text = fmt::format("loss        {:.6f}\n", record.loss);
  if (record.perplexity) {
    text += fmt::format("perplexity  {:.4f}\n", *record.perplexity);
  }
  return text +
      fmt::format(
             "targets     {} of {}\ntime        {:.2f} s, {:.0f} targets/s\n",
             record.targets,
             counted(record.samples, "sample"),
             record.time_s,
             static_cast<double>(record.targets) / record.time_s);
}

int eval_rank(
    const EvalOptions& options,
    const EvalTarget& target,
    RankSession& session,
    Ranks& ranks) {
  const bool silent = !ranks.leads() && session.environment().launcher_pid == 0;
  std::ostream nowhere(nullptr);
  std::ostream& out = silent ? nowhere : std::cout;
  TextBar reading(out);
  ranks.watch_reading(
      [&reading](const std::string& name, double done) { reading.show(done, "reading " + name); });
  const bool writes = ranks.leads() && !options.json.empty();
  ranks.together([&] {
    if (writes) { // what cannot be written is told early; nothing stays of it
      AtomicFile(options.json);
    }
  });
  ModelEvaluation evaluation(target.config, target.request, ranks);
  reading.end();
  out << fmt::format(
      "model       {}: {}\n", target.model, evaluation.model().weights_description());
  for (const auto& notes : {target.notes, evaluation.notes()}) {
    for (const std::string& note : notes) {
      out << fmt::format("note        {}\n", note);
    }
  }
  out << std::flush;
  const EvaluationRecord record = evaluation.measure();
  out << to_text(record) << std::flush;
  ranks.together([&] {
    if (writes) {
      write_file_atomically(options.json, to_json(record, target));
    }
  });
  return 0;
}

void eval(const EvalOptions& options) {
  const RankEnvironment rank = detect_rank(current_environment(), {});
  std::optional<EvalTarget> target;
  try {
    require_different_files("eval", {{"the config", options.target}, {"--json", options.json}});
    target = find_eval_target(options);
  } catch (const Error& error) { // wrong for all of a host, and the first of them says it
    if (rank.local_rank == 0) {
      throw;
    }
    throw ExitCode(leave_word_to_others(error));
  }
  RankSession session(rank, target->config, PALIMPSEST_VERSION, OnSignal::kEndAtOnce);
  const int code =
      session.run([&](Ranks& ranks) { return eval_rank(options, *target, session, ranks); });
  if (code != 0) {
    throw ExitCode(code);
  }
}

} // namespace

void add_eval_verb(CLI::App& program) {
  const auto options = std::make_shared<EvalOptions>();
  CLI::App* verb =
      program.add_subcommand("eval", "Loss and perplexity of a trained model on held-out samples.");
  verb->add_option(
          "target",
          options->target,
          "A run's config, a checkpoint, an output folder, a model folder or hub id")
      ->required();
  verb->add_option("overrides", options->overrides, "key=value, with dotted keys");
  verb->add_option(
      "--model", options->model, "With a config: this folder instead of the newest of OUTPUT");
  verb->add_option(
      "--checkpoint", options->checkpoint, "With a config: what this checkpoint holds");
  verb->add_option(
          "--data",
          options->data,
          "A file to evaluate on, instead of data.validation; may be given again")
      ->allow_extra_args(false);
  verb->add_option("--format", options->format, "Their format [by the ending]");
  verb->add_option("--samples", options->samples, "At most so many samples, the first ones")
      ->check(CLI::PositiveNumber);
  verb->add_option("--json", options->json, "Write the numbers to this file");
  verb->footer(
      examples("palimpsest eval run.yaml\n"
               "palimpsest eval run.yaml --model runs/a/best\n"
               "palimpsest eval runs/a/step-00001000 --json loss.json\n"
               "palimpsest eval Qwen/Qwen2.5-0.5B --data held-out.txt\n"
               "palimpsest launch -n 4 eval run.yaml parallel.zero=3"));
  verb->callback([options] { eval(*options); });
}

} // namespace palimpsest
