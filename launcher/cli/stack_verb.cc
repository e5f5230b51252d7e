#include <palimpsest/launcher/cli/stack_verb.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/show.h>
#include <palimpsest/launcher/cli/output_files.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/stack_rows.h>
#include <palimpsest/launcher/compose/stack_table.h>
#include <palimpsest/launcher/launch/rank_environment.h>
#include <palimpsest/launcher/launch/spawn.h>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <iostream>
#include <list>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

struct StackOptions {
  std::string config;
  std::vector<std::string> overrides;
  StackChoice choice;
  int64_t steps = 5;
  std::string json;
  std::string csv;
  std::string markdown;
  std::string html;
};

/// The last lines of a log.
std::string tail_of(const fs::path& file) {
  constexpr size_t kLines = 12;
  const std::string text = read_file(file);
  size_t begin = text.size();
  for (size_t lines = 0; lines <= kLines && begin != std::string::npos && begin > 0; ++lines) {
    begin = text.rfind('\n', begin - 1);
  }
  return text.substr(begin == std::string::npos || begin == 0 ? 0 : begin + 1);
}

/// The settings of a row's run, which writes to a folder of its own. What a row decides is not the
/// user's to override.
std::vector<std::string> settings_of(
    const StackOptions& options,
    const StackRun& row,
    const fs::path& folder) {
  std::vector<std::string> own = row.overrides;
  own.push_back(fmt::format("training.steps={}", options.steps));
  own.emplace_back("training.epochs=null");
  own.push_back("training.output=" + (folder / "run").string());
  const auto key = [](const std::string& setting) { return setting.substr(0, setting.find('=')); };
  std::vector<std::string> settings = options.overrides;
  std::erase_if(settings, [&](const std::string& setting) {
    return std::ranges::find(own, key(setting), key) != own.end();
  });
  settings.insert(settings.end(), own.begin(), own.end());
  return settings;
}

/// The status with which a row's process ends. A signal that would have ended us ends it, and the
/// ranks that it started.
int status_of(pid_t child, const std::string& row, const SignalQueue& signals) {
  int status = 0;
  while (waitpid(child, &status, WNOHANG) == 0) {
    pollfd polled{.fd = signals.fd(), .events = POLLIN, .revents = 0};
    poll(&polled, 1, -1);
    while (const int signal = signals.next()) {
      if (signal != SIGCHLD) {
        kill(-child, SIGKILL);
        waitpid(child, &status, 0);
        throw Error(
            fmt::format(
                "stack: ended by signal {} ({}) in the row '{}'", signal, strsignal(signal), row),
            128 + signal);
      }
    }
  }
  return status;
}

/// A process of its own for each row, so that its resident memory is its own. Its output goes to a
/// file. Throws, with the last lines of it, where the row fails.
void run_row(
    const StackOptions& options,
    const StackRun& row,
    const fs::path& folder,
    const SignalQueue& signals) {
  fs::create_directories(folder);
  std::vector<std::string> command = {fs::read_symlink("/proc/self/exe").string()};
  if (row.ranks > 1) {
    command.insert(command.end(), {"launch", "-n", std::to_string(row.ranks)});
  }
  command.insert(command.end(), {"train", options.config});
  const std::vector<std::string> settings = settings_of(options, row, folder);
  command.insert(command.end(), settings.begin(), settings.end());
  command.insert(command.end(), {"--json", (folder / "report.json").string()});
  const fs::path log = folder / "log";
  const pid_t child = spawn(command, current_environment(), SIGKILL, [&] {
    const int file = open(log.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (file < 0 || dup2(file, STDOUT_FILENO) < 0 || dup2(file, STDERR_FILENO) < 0) {
      throw EnvironmentError("cannot write {}", log.string());
    }
  });
  if (const int code = exit_code_of(status_of(child, row.name, signals)); code != 0) {
    throw Error(
        fmt::format(
            "stack: the row '{}' ended with exit code {}; it said last:\n{}",
            row.name,
            code,
            tail_of(log)),
        code == 2 ? 2 : 1);
  }
}

/// Files that the results go to, opened before anything runs.
class Outputs {
 public:
  void add(const std::string& path, std::string (*text)(const Report&)) {
    if (!path.empty()) {
      files_.emplace_back(path, text);
    }
  }
  void write(const Report& report) {
    for (auto& [file, text] : files_) {
      file.write(text(report));
      file.commit();
      std::cout << "written: " << file.path().string() << "\n";
    }
  }

 private:
  struct Output {
    Output(const std::string& path, std::string (*content)(const Report&))
        : file(path), text(content) {}
    AtomicFile file;
    std::string (*text)(const Report&);
  };
  std::list<Output> files_; // an open file does not move
};

/// What the page says beside the rows: of the baseline's own report.
Report head_of(const StackOptions& options, const RunConfig& config, const std::string& told) {
  const auto baseline = nlohmann::json::parse(told);
  Report report{.kind = "stack", .title = fs::path(options.config).filename()};
  report.version = PALIMPSEST_VERSION;
  report.device = baseline.at("device").get<std::string>();
  report.config = config_text(config, 1);
  for (const auto& fact : baseline.at("facts")) {
    if (fact[0] == "model") {
      report.facts.emplace_back("model", fact[1].get<std::string>());
    }
  }
  report.facts.emplace_back(
      "runs",
      fmt::format(
          "{} steps each, in a process of its own; times are medians without the first step",
          options.steps));
  return report;
}

void stack(const StackOptions& options) {
  const RunConfig config = load_config(options.config, options.overrides);
  const std::vector<StackRun> rows = stack_rows(config, options.choice);
  require_different_files(
      "stack",
      {{"the config", options.config},
       {"--json", options.json},
       {"--csv", options.csv},
       {"--markdown", options.markdown},
       {"--html", options.html}});
  const SignalQueue signals({SIGINT, SIGTERM, SIGHUP, SIGCHLD}); // nothing is left behind then
  Outputs outputs;
  outputs.add(options.json, [](const Report& report) { return to_json(report.stack); });
  outputs.add(options.csv, [](const Report& report) { return stack_csv(report.stack); });
  outputs.add(options.markdown, [](const Report& report) { return stack_markdown(report.stack); });
  outputs.add(options.html, [](const Report& report) { return to_html(report); });
  // Hidden beside the output folder, and gone at the end.
  const AtomicFolder scratch(config.training().output() + "-stack", Existing::kReplace);
  for (const StackRun& row : rows) { // what a row would refuse is known before the first one runs
    load_config(options.config, settings_of(options, row, scratch.path()));
  }
  std::cout << stack_head() << std::flush;
  Report report;
  StackMeasurement baseline;
  for (const StackRun& row : rows) {
    const fs::path folder = scratch.path() / std::to_string(report.stack.size());
    run_row(options, row, folder, signals);
    const std::string told = read_file(folder / "report.json");
    StackMeasurement run =
        read_measurement(row.name, told, read_file(folder / "run" / "metrics.jsonl"));
    if (report.kind.empty()) {
      report = head_of(options, config, told);
      baseline = run;
    }
    report.stack.push_back(stack_row(row.name, run, baseline));
    std::cout << stack_line(report.stack.back()) << std::flush;
    fs::remove_all(folder);
  }
  std::cout << "device: most tracked bytes on the rank that has most; of baseline: of that column. "
               "Differences are relative to the baseline, the greatest over all steps.\n";
  outputs.write(report);
}

} // namespace

void add_stack_verb(CLI::App& program) {
  const auto options = std::make_shared<StackOptions>();
  CLI::App* verb = program.add_subcommand(
      "stack", "Trains a few steps with one memory technique more a row, and compares the rows.");
  verb->add_option("config", options->config, "YAML or JSON file")->required();
  verb->add_option("overrides", options->overrides, "key=value, with dotted keys");
  verb->add_option(
          "--order",
          options->choice.order,
          fmt::format("Which technique comes when [{}]", fmt::join(stack_techniques(), ",")))
      ->delimiter(',')
      ->allow_extra_args(false);
  verb->add_option("--only", options->choice.only, "The baseline and these techniques only")
      ->delimiter(',')
      ->allow_extra_args(false);
  verb->add_option("--ranks", options->choice.ranks, "Ranks that share states; 1: none do")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  verb->add_option("--steps", options->steps, "Steps a row; the first is not timed")
      ->check(CLI::Range(int64_t{2}, int64_t{1} << 30))
      ->capture_default_str();
  verb->add_option("--json", options->json, "Write the rows to this file");
  verb->add_option("--csv", options->csv, "The same, as CSV");
  verb->add_option("--markdown", options->markdown, "The same, as a Markdown table");
  verb->add_option("--html", options->html, "The same, as a page");
  verb->footer(
      examples("palimpsest stack run.yaml\n"
               "palimpsest stack run.yaml --ranks 4 --html stack.html --json stack.json\n"
               "palimpsest stack run.yaml --only checkpointing,bf16 --order bf16,checkpointing"));
  verb->callback([options] { stack(*options); });
}

} // namespace palimpsest
