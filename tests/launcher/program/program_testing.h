#pragma once

// The built program on several ranks, in processes of their own.

#include <palimpsest/tests/launcher/launch/launch_testing.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// How ranks are started.
enum class Starter { kLaunch, kLaunchWithoutMpirun, kMpirun, kTorchrun };

class ProgramRanks : public ProcessFixture {
 protected:
  static bool has_mpirun() {
    return std::system("command -v mpirun >/dev/null 2>&1") == 0;
  }

  /// A config of the golden model `name` (three steps, as its reference trained), written to the
  /// folder; `more` are its further lines.
  std::string golden_config(const std::string& name, const std::string& more = "") const {
    const std::string model = std::string(PALIMPSEST_TEST_DATA) + "/models/" + name;
    std::ofstream file(folder_ / "run.yaml");
    file << "model: {path: " << model << "}\n"
         << "data: {files: [" << model << "/golden.safetensors], format: tensors, shuffle: false}\n"
         << "training: {steps: 3, global_batch_size: 2, micro_batch_size: 1, threads: 1}\n"
         << "optimizer: {learning_rate: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, "
            "max_grad_norm: 1.0}\n"
         << more;
    return (folder_ / "run.yaml").string();
  }

  std::filesystem::path output() const {
    return folder_ / "run";
  }

  /// `train CONFIG overrides…` on `count` ranks; returns the process to wait for.
  pid_t train(Starter starter, int count, const std::string& config, const Words& overrides = {}) {
    Words words = {"train", config, "training.output=" + output().string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    Words command;
    switch (starter) {
      case Starter::kLaunch:
        command = {PALIMPSEST_PROGRAM, "launch", "-n", std::to_string(count)};
        break;
      case Starter::kLaunchWithoutMpirun:
        command = {PALIMPSEST_PROGRAM, "launch", "-n", std::to_string(count), "--no-mpirun"};
        break;
      case Starter::kMpirun:
        command = {
            "/usr/bin/env",
            "mpirun",
            "--allow-run-as-root",
            "--bind-to",
            "none",
            "--oversubscribe",
            "-n"};
        command.insert(command.end(), {std::to_string(count), PALIMPSEST_PROGRAM});
        break;
      case Starter::kTorchrun:
        return train_by_variables(count, words);
    }
    command.insert(command.end(), words.begin(), words.end());
    return start(command);
  }

  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> found;
    std::ifstream file(output() / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      found.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    }
    return found;
  }

 private:
  /// As torchrun starts ranks, a shell for the agent: it ends with the first code that is not 0.
  pid_t train_by_variables(int count, const Words& words) {
    std::string line = PALIMPSEST_PROGRAM;
    for (const std::string& word : words) {
      line += " '" + word + "'";
    }
    const int port = 20000 + getpid() % 20000;
    std::string script = "pids=; ";
    for (int rank = 0; rank < count; ++rank) {
      script += "RANK=" + std::to_string(rank) + " LOCAL_RANK=" + std::to_string(rank) + " " +
          line + " & pids=\"$pids $!\"; ";
    }
    script += "code=0; for p in $pids; do wait $p || code=$?; done; exit $code";
    const std::string size = std::to_string(count);
    return start(
        {"/bin/sh", "-c", script},
        {{"WORLD_SIZE", size},
         {"LOCAL_WORLD_SIZE", size},
         {"MASTER_ADDR", "127.0.0.1"},
         {"MASTER_PORT", std::to_string(port)}});
  }
};

} // namespace palimpsest::testing
