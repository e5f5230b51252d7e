#include <palimpsest/launcher/cli/inspect_verb.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/checkpoint_report.h>

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>

namespace palimpsest {

void add_inspect_verb(CLI::App& program) {
  const auto options = std::make_shared<InspectOptions>();
  const auto folder = std::make_shared<std::string>();
  CLI::App* verb = program.add_subcommand(
      "inspect", "Shows what a checkpoint holds, or an output folder's checkpoints.");
  verb->add_option("folder", *folder, "A checkpoint, or an output folder")->required();
  verb->add_flag("--verify", options->verify, "Read everything and compare all checksums");
  verb->add_flag("--tensors", options->tensors, "List every state of every parameter");
  verb->footer(
      examples("palimpsest inspect runs/a\n"
               "palimpsest inspect runs/a/step-00001000 --verify"));
  verb->callback([options, folder] { inspect(*folder, *options, std::cout); });
}

} // namespace palimpsest
