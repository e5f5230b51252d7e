#pragma once

// The built program on several ranks, in processes of their own.

#include <palimpsest/tests/launcher/launch/launch_testing.h>

#include <nlohmann/json.hpp>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

namespace palimpsest::testing {

/// For what ends by itself: an overloaded machine takes a minute to start Python alone.
inline constexpr auto kPatience = 180s;

/// How ranks are started. kVariables: by a shell, as torchrun would, without its agent.
enum class Starter { kLaunch, kLaunchWithoutMpirun, kMpirun, kTorchrun, kVariables };

inline std::string name_of(Starter starter) {
  constexpr const char* kNames[] = {
      "Launch", "LaunchWithoutMpirun", "Mpirun", "Torchrun", "Variables"};
  return kNames[static_cast<size_t>(starter)];
}

inline bool is_program(const std::string& name) {
  return std::system(("command -v " + name + " >/dev/null 2>&1").c_str()) == 0;
}

/// torchrun of the peers' Python, else of PATH; empty: there is none.
inline std::string torchrun() {
  const std::string peer = std::string(PALIMPSEST_TEST_DATA) + "/../../.deps/peer/bin/torchrun";
  for (const std::string& program : {peer, std::string("torchrun")}) {
    if (is_program(program)) {
      return program;
    }
  }
  return "";
}

/// Why ranks cannot be started so on this machine; empty: they can.
inline std::string missing(Starter starter) {
  if (starter == Starter::kMpirun && !is_program("mpirun")) {
    return "there is no mpirun here";
  }
  if (starter == Starter::kTorchrun && torchrun().empty()) {
    return "there is no torchrun here, in .deps/peer/bin or on PATH";
  }
  return "";
}

/// Open MPI wants words for what others do anyway: run as root, bind to nothing, more ranks than cores.
inline bool mpirun_is_open_mpi() {
  static const bool kIs = std::system("mpirun --version 2>&1 | grep -q 'Open MPI'") == 0;
  return kIs;
}

/// Those of the starters that this machine has; tells why others are left out.
inline std::vector<Starter> usable(const std::vector<Starter>& starters) {
  std::vector<Starter> found;
  for (const Starter starter : starters) {
    const std::string reason = missing(starter);
    if (reason.empty()) {
      found.push_back(starter);
    } else {
      std::cout << name_of(starter) << " is left out: " << reason << std::endl;
    }
  }
  return found;
}

class ProgramRanks : public ProcessFixture {
 protected:
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

  /// The words that start `command` on `count` ranks.
  static Words on_ranks(Starter starter, int count, Words command) {
    const std::string ranks = std::to_string(count);
    Words words;
    switch (starter) {
      case Starter::kLaunch:
        words = {command[0], "launch", "-n", ranks};
        command.erase(command.begin());
        break;
      case Starter::kLaunchWithoutMpirun:
        words = {command[0], "launch", "-n", ranks, "--no-mpirun"};
        command.erase(command.begin());
        break;
      case Starter::kMpirun:
        words = {"/usr/bin/env", "mpirun", "-n", ranks};
        if (mpirun_is_open_mpi()) {
          words.insert(
              words.end(), {"--allow-run-as-root", "--bind-to", "none", "--oversubscribe"});
        }
        break;
      case Starter::kTorchrun:
        words = {"/usr/bin/env", torchrun(), "--standalone", "--no-python"};
        words.insert(words.end(), {"--nproc-per-node", ranks});
        break;
      case Starter::kVariables:
        return by_variables(count, command);
    }
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  /// `palimpsest train CONFIG overrides…`.
  Words train_command(const std::string& config, const Words& overrides = {}) const {
    Words words = {PALIMPSEST_PROGRAM, "train", config, "training.output=" + output().string()};
    words.insert(words.end(), overrides.begin(), overrides.end());
    return words;
  }

  /// `train CONFIG overrides…` on `count` ranks; returns the process to wait for.
  pid_t train(
      Starter starter,
      int count,
      const std::string& config,
      const Words& overrides = {},
      const Environment& more = {}) {
    return start(on_ranks(starter, count, train_command(config, overrides)), more);
  }

  /// The exit code of a job whose ranks end with `code`: torchrun has one for all that is not 0.
  static int code_of_job(Starter starter, int code) {
    return starter == Starter::kTorchrun && code != 0 ? 1 : code;
  }

  std::vector<nlohmann::json> metrics() const {
    std::vector<nlohmann::json> found;
    std::ifstream file(output() / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) {
      found.push_back(nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false));
    }
    return found;
  }

  /// The config of one step on two records that are read as text, with a second's patience for
  /// whatever is not long work.
  std::string two_records() const {
    std::ofstream(folder_ / "records.jsonl") << "{\"prompt\": \"a\", \"completion\": \"b\"}\n"
                                             << "{\"prompt\": \"c\", \"completion\": \"d\"}\n";
    std::ofstream(folder_ / "run.yaml")
        << "model: {family: llama, vocab_size: 512, hidden_size: 16, num_hidden_layers: 1, "
           "num_attention_heads: 2, intermediate_size: 32}\n"
        << "data: {files: [" << (folder_ / "records.jsonl").string()
        << "], format: prompt_completion, tokenizer: " << PALIMPSEST_TEST_DATA
        << "/tokenizers/qwen2-512, sequence_length: 8}\n"
        << "training: {steps: 1, global_batch_size: 2, micro_batch_size: 1, threads: 1}\n"
        << "optimizer: {learning_rate: 1e-3}\n"
        << "parallel: {timeout: 1}\n";
    return (folder_ / "run.yaml").string();
  }

  /// A run that would take hours, with its first steps done.
  pid_t start_long_run(Starter starter, int ranks, const Words& more = {}) {
    Words overrides = {
        "training.steps=1000000", "training.global_batch_size=6", "checkpoint.save_every=1000000"};
    overrides.insert(overrides.end(), more.begin(), more.end());
    const pid_t process = train(starter, ranks, golden_config("llama-tiny"), overrides);
    EXPECT_TRUE(eventually(kPatience, [&] { return metrics().size() > 3; })) << err();
    return process;
  }

  /// The process that computes as a rank: the youngest of those that carry its number, since a rank
  /// of mpirun may have a parent that watches over it.
  pid_t rank_process(int rank) const {
    pid_t youngest = 0;
    for (const char* name : {"OMPI_COMM_WORLD_RANK=", "PMI_RANK=", "RANK="}) {
      for (const std::string& line : processes_with(name + std::to_string(rank))) {
        const std::string process = line.substr(0, line.find(':'));
        if (text_of("/proc/" + process + "/environ").find(folder_.string()) != std::string::npos) {
          youngest = std::max(youngest, static_cast<pid_t>(std::stoi(process)));
        }
      }
    }
    return youngest;
  }

 private:
  /// A shell for torchrun's agent: it ends with the first code that is not 0, and lets the others go
  /// on.
  static Words by_variables(int count, const Words& command) {
    std::string line;
    for (const std::string& word : command) {
      line += " '" + word + "'";
    }
    const std::string size = std::to_string(count);
    std::string script = "pids=; export WORLD_SIZE=" + size + " LOCAL_WORLD_SIZE=" + size +
        " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + std::to_string(20000 + getpid() % 20000) + "; ";
    for (int rank = 0; rank < count; ++rank) {
      const std::string number = std::to_string(rank);
      script += "RANK=" + number + " LOCAL_RANK=" + number + line + " & pids=\"$pids $!\"; ";
    }
    script += "code=0; for p in $pids; do wait $p || code=$?; done; exit $code";
    return {"/bin/sh", "-c", script};
  }
};

} // namespace palimpsest::testing
