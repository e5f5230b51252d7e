#include <palimpsest/launcher/cli/launch_verb.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/nearest.h>
#include <palimpsest/launcher/cli/output_files.h>
#include <palimpsest/launcher/cli/program.h>
#include <palimpsest/launcher/cli/train_verb.h>
#include <palimpsest/launcher/cli/usage.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/rank_session.h>
#include <palimpsest/launcher/launch/job.h>
#include <palimpsest/launcher/launch/supervisor.h>

#include <CLI/CLI.hpp>
#include <fmt/ranges.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {
namespace {

constexpr int kRefusedExitCode = 2;

struct LaunchVerbOptions {
  LaunchOptions launch;
  int64_t grace = 120;
  bool dry_run = false;
  bool no_mpirun = false;
  bool as_rank = false;
};

/// The ranks' part: the verb behind `launch` and its arguments.
using RankArguments = std::vector<std::string>;

/// Looks at what `train` will be given, so that what is wrong with the config, or with the files
/// that it is to write, is said once and before any rank; returns its output folder.
std::filesystem::path check_training(const RankArguments& arguments) {
  CLI::App program("", "palimpsest");
  add_train_verb(program);
  refuse_empty_values(program);
  CLI::App* train = program.get_subcommand("train");
  // The arguments have been read and checked, and the verb would begin.
  struct Parsed {};
  program.parse_complete_callback([] { throw Parsed(); });
  try {
    program.parse(RankArguments(arguments.rbegin(), arguments.rend())); // takes the last one first
  } catch (const Parsed&) { // NOLINT(bugprone-empty-catch): nothing is trained here
  } catch (const CLI::ParseError& error) { // --help too, with code 0
    if (error.get_exit_code() != 0) {
      throw usage_error(program, error);
    }
    program.exit(error);
    throw ExitCode(0);
  }
  const std::string config = train->get_option("config")->results().front();
  std::vector<NamedFile> files = {{"the config", config}};
  for (const char* option : {"--html", "--json", "--dump-gradients"}) {
    files.push_back({option, train->get_option(option)->as<std::string>()});
  }
  require_different_files("train", files);
  for (size_t file = 1; file < files.size(); ++file) {
    if (!files[file].path.empty()) {
      const AtomicFile opened(files[file].path); // and gone again
    }
  }
  return load_config(config, train->get_option("overrides")->results()).training().output();
}

/// In a process that mpirun started: the verb, as a supervised rank.
[[noreturn]] void run_as_rank(const RankArguments& arguments) {
  supervise_rank(current_environment());
  std::vector<const char*> all = {"palimpsest"};
  for (const std::string& argument : arguments) {
    all.push_back(argument.c_str());
  }
  throw ExitCode(run_program(static_cast<int>(all.size()), all.data())); // its errors are printed
}

/// What stands behind the options of `launch`: a verb of the program and its arguments.
RankArguments rank_arguments(const CLI::App& launch) {
  if (const std::vector<std::string> words = launch.remaining();
      !words.empty() && !launch.get_subcommands().empty()) {
    throw UserError(
        "launch: '{}' is no option of launch; what concerns the ranks stands behind their verb",
        words[0]);
  }
  for (const CLI::App* verb : launch.get_subcommands()) {
    if (verb->get_name() != "train" && verb->get_name() != "eval") {
      throw UserError(
          "launch: ranks cannot do '{}', they train or eval; a job's plan is what plan --world N "
          "prints",
          verb->get_name());
    }
    RankArguments arguments = {verb->get_name()};
    const std::vector<std::string> rest = verb->remaining();
    arguments.insert(arguments.end(), rest.begin(), rest.end());
    return arguments;
  }
  std::vector<std::string> verbs;
  for (const CLI::App* verb : launch.get_subcommands({})) {
    verbs.push_back(verb->get_name());
  }
  const std::vector<std::string> words = launch.remaining();
  if (words.empty()) {
    throw UserError("launch: what shall the ranks do? As in: launch -n 4 train run.yaml");
  }
  throw UserError(
      "launch: ranks cannot do '{}'{}; there are {}",
      words[0],
      did_you_mean(words[0], verbs),
      fmt::join(verbs, ", "));
}

/// The program's verbs once more, below `launch`, where each takes its arguments as they are. (For
/// the library a verb's name ends the arguments of `launch`.)
void add_rank_verbs(const CLI::App& program, CLI::App& launch) {
  for (const CLI::App* verb : program.get_subcommands({})) {
    if (verb != &launch) {
      CLI::App* ours = launch.add_subcommand(verb->get_name())->group("");
      ours->set_help_flag();
      ours->prefix_command();
    }
  }
}

/// Logs that nothing was written to, and their folder where it holds no others.
void remove_empty_logs(const std::filesystem::path& folder) {
  std::error_code ignored;
  for (const auto& log : std::filesystem::directory_iterator(folder, ignored)) {
    if (log.is_regular_file(ignored) && log.file_size(ignored) == 0) {
      std::filesystem::remove(log.path(), ignored);
    }
  }
  std::filesystem::remove(folder, ignored);
}

/// Runs a job whose logs are where nobody asked for them. Where its ranks refuse before anything
/// begins, a folder of logs that was not there goes again, unless the message points to it; empty
/// logs go after any failure.
void run_or_leave_nothing(
    const LaunchPlan& plan,
    const LaunchOptions& options,
    const Environment& environment) {
  namespace fs = std::filesystem;
  std::error_code ignored;
  const fs::path output = options.log_folder.parent_path();
  const bool existed = fs::exists(output, ignored);
  const bool had_logs = fs::exists(options.log_folder, ignored);
  try {
    run_job(plan, options, environment);
  } catch (const Error& error) {
    const bool refused = error.exit_code() == kRefusedExitCode;
    const bool named =
        std::string_view(error.what()).find(options.log_folder.string()) != std::string_view::npos;
    if (refused && !named && !had_logs) {
      fs::remove_all(options.log_folder, ignored);
    }
    remove_empty_logs(options.log_folder);
    if (!existed) {
      fs::remove(output, ignored); // stays where anything else is in it
    }
    throw;
  }
}

void launch(LaunchVerbOptions options, const RankArguments& arguments) {
  if (options.as_rank) {
    run_as_rank(arguments);
  }
  LaunchOptions& launch = options.launch;
  const bool training = arguments[0] == "train";
  const std::filesystem::path output = training ? check_training(arguments) : "";
  const bool own_logs = launch.log_folder.empty() && training;
  const bool passing_logs = launch.log_folder.empty() && !training;
  if (passing_logs) { // of a run that is over, whose own logs stay
    launch.log_folder = std::filesystem::temp_directory_path() /
        fmt::format("palimpsest-{}-logs-{}", arguments[0], getpid());
  } else if (launch.log_folder.empty()) {
    launch.log_folder = output / "logs";
  }
  if (options.no_mpirun) {
    launch.no_mpirun = "--no-mpirun";
  } else if (!can_use_mpi()) {
    launch.no_mpirun = "built without MPI";
  }
  launch.grace = std::chrono::seconds(options.grace);
  launch.command = {std::filesystem::read_symlink("/proc/self/exe").string()};
  launch.command.insert(launch.command.end(), arguments.begin(), arguments.end());
  launch.as_rank = {"launch", "--as-rank"};
  const Environment environment = current_environment();
  const LaunchPlan plan = plan_launch(launch, environment);
  if (options.dry_run) {
    std::cout << plan.describe(launch);
    return;
  }
  if (own_logs || passing_logs) {
    run_or_leave_nothing(plan, launch, environment);
  } else {
    run_job(plan, launch, environment);
  }
  if (passing_logs) {
    std::error_code ignored;
    std::filesystem::remove_all(launch.log_folder, ignored);
  }
}

} // namespace

void add_launch_verb(CLI::App& program) {
  const auto options = std::make_shared<LaunchVerbOptions>();
  LaunchOptions& launch_options = options->launch;
  CLI::App* verb = program.add_subcommand(
      "launch", "Starts the ranks of this machine, and ends them all together.");
  verb->add_option("-n,--ranks", launch_options.ranks, "Number of ranks")
      ->check(CLI::Range(1, 4096));
  verb->add_option("--hostfile", launch_options.hostfile, "Hosts and slots: 'host slots=4' a line");
  verb->add_option("--include", launch_options.include, "Only these hosts and slots: w0@w1:0,2");
  verb->add_option("--exclude", launch_options.exclude, "All but these hosts and slots");
  verb->add_option("--master-port", launch_options.port, "Where rank 0 listens [a free port]")
      ->check(CLI::Range(1, 65535));
  verb->add_option(
      "--log-folder",
      launch_options.log_folder,
      "For rank-0000.log, ... [OUTPUT/logs; for eval none that stays]");
  verb->add_option("--grace", options->grace, "Seconds to save and end in after SIGTERM or Ctrl-C")
      ->check(CLI::Range(int64_t{0}, int64_t{86400}))
      ->capture_default_str();
  verb->add_flag("--dry-run", options->dry_run, "Print the plan and start nothing");
  verb->add_flag("--no-mpirun", options->no_mpirun, "Start own processes even where mpirun is");
  verb->add_flag("--as-rank", options->as_rank)->group(""); // hidden: for the processes of mpirun
  verb->prefix_command();
  verb->footer(
      examples("palimpsest launch -n 4 train run.yaml\n"
               "palimpsest launch -n 2 --no-mpirun train run.yaml training.steps=100\n"
               "palimpsest launch --hostfile hosts.txt --include w0:0,2 --dry-run train run.yaml"));
  add_rank_verbs(program, *verb);
  verb->callback([options, verb] { launch(*options, rank_arguments(*verb)); });
}

} // namespace palimpsest
