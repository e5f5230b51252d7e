#pragma once

// The verbs of the command line. A verb is a file with one function that adds its subcommand; it
// does its work in the subcommand's callback, and ends by returning (exit code 0) or by throwing
// (an Error's own code, or an ExitCode).
//
//   void add_train_verb(CLI::App& program) {
//     auto options = std::make_shared<TrainOptions>();
//     CLI::App* verb = program.add_subcommand("train", "Trains a model.");
//     verb->add_option("config", options->config, "YAML or JSON file.")->required();
//     verb->callback([options] { train(*options); });
//   }

#include <exception>
#include <string>

namespace CLI {
class App;
}

namespace palimpsest {

/// Ends the program with a code and nothing more to say; thrown by a verb.
class ExitCode : public std::exception {
 public:
  explicit ExitCode(int code) : code_(code) {}
  int code() const {
    return code_;
  }

 private:
  int code_;
};

/// Every verb, in the order of the help: the one list that a new verb is added to (verbs.cc).
void register_verbs(CLI::App& program);

/// The footer that shows a verb's examples, one command a line.
std::string examples(const std::string& lines);

} // namespace palimpsest
