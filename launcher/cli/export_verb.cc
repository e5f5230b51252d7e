#include <palimpsest/launcher/cli/export_verb.h>
#include <palimpsest/launcher/cli/verb.h>
#include <palimpsest/launcher/compose/checkpoint_export.h>

#include <CLI/CLI.hpp>

#include <iostream>
#include <memory>
#include <string>

namespace palimpsest {
namespace {

struct ExportOptions {
  std::string checkpoint;
  std::string out;
};

void export_model(const ExportOptions& options) {
  const ExportedCheckpoint exported = export_checkpoint(options.checkpoint, options.out);
  std::cout << "exported step " << exported.step << " of run " << exported.run_id << " ("
            << exported.folder.string() << ") to " << options.out << "\n";
}

} // namespace

void add_export_verb(CLI::App& program) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* verb =
      program.add_subcommand("export", "Writes a checkpoint's model as a Hugging Face folder.");
  verb->add_option(
          "checkpoint", options->checkpoint, "A checkpoint, or an output folder: its newest one")
      ->required();
  verb->add_option("out", options->out, "Folder to write; must be empty or missing")->required();
  verb->footer(
      examples("palimpsest export runs/a/step-00001000 my-model\n"
               "palimpsest export runs/a my-model"));
  verb->callback([options] { export_model(*options); });
}

} // namespace palimpsest
