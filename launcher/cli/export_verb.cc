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
  bool merge = false;
};

void export_model(const ExportOptions& options) {
  const ExportedCheckpoint exported = export_checkpoint(
      options.checkpoint, options.out, options.merge ? Adapters::kMerged : Adapters::kApart);
  std::cout << "exported " << (exported.adapters ? "the adapters of " : "") << "step "
            << exported.step << " of run " << exported.run_id << " (" << exported.folder.string()
            << ") to " << options.out << "\n";
  if (!exported.missing_model.empty()) {
    std::cout << "note: the run's model.path, " << exported.missing_model
              << ", is not there, so frozen weights are written as the run held them, rounded; "
                 "export where that path leads to the model to get its own\n";
  }
}

} // namespace

void add_export_verb(CLI::App& program) {
  const auto options = std::make_shared<ExportOptions>();
  CLI::App* verb = program.add_subcommand(
      "export",
      "Writes a checkpoint's model as a Hugging Face folder, or its adapters as a PEFT one.");
  verb->add_option(
          "checkpoint", options->checkpoint, "A checkpoint, or an output folder: its newest one")
      ->required();
  verb->add_option("out", options->out, "Folder to write; must be empty or missing")->required();
  verb->add_flag(
      "--merge", options->merge, "Of a run with lora: the whole model with its adapters in it");
  verb->footer(
      examples("palimpsest export runs/a/step-00001000 my-model\n"
               "palimpsest export runs/a my-model\n"
               "palimpsest export runs/lora my-model --merge"));
  verb->callback([options] { export_model(*options); });
}

} // namespace palimpsest
