#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/reference.h>
#include <palimpsest/core/config/show.h>
#include <palimpsest/launcher/cli/config_verb.h>
#include <palimpsest/launcher/cli/verb.h>

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

struct ShowOptions {
  std::string path;
  std::vector<std::string> overrides;
  int64_t world = 1;
};

void show(const ShowOptions& options) {
  Origins origins;
  const RunConfig config = load_config(options.path, options.overrides, &origins);
  std::cout << show_config(config, origins, options.world);
}

} // namespace

void add_config_verb(CLI::App& program) {
  CLI::App* verb = program.add_subcommand("config", "Shows what a config means, or all keys.");
  verb->require_subcommand(1);
  verb->footer(
      examples("palimpsest config show run.yaml\n"
               "palimpsest config show run.yaml training.steps=100 --world 4\n"
               "palimpsest config reference"));

  const auto options = std::make_shared<ShowOptions>();
  CLI::App* show_verb = verb->add_subcommand(
      "show", "Prints the resolved config: every value and where it came from.");
  show_verb->add_option("config", options->path, "YAML or JSON file")->required();
  show_verb->add_option("overrides", options->overrides, "key=value, with dotted keys");
  show_verb->add_option("--world", options->world, "Number of ranks that the batch is derived for")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20))
      ->capture_default_str();
  show_verb->footer(examples("palimpsest config show run.yaml 'optimizer.betas=[0.9, 0.95]'"));
  show_verb->callback([options] { show(*options); });

  CLI::App* reference =
      verb->add_subcommand("reference", "Prints the reference of all keys (Markdown).");
  reference->footer(examples("palimpsest config reference > docs/config.md"));
  reference->callback([] { std::cout << config_reference(); });
}

} // namespace palimpsest
