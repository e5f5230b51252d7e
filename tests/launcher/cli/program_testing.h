#pragma once

// The program as its users meet it: arguments in, exit code and what it printed out.

#include <palimpsest/launcher/cli/program.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace palimpsest::testing {

struct Outcome {
  int exit_code;
  std::string out;
  std::string err;
};

inline Outcome run(const std::vector<std::string>& arguments) {
  std::vector<const char*> all = {"palimpsest"};
  for (const std::string& argument : arguments) {
    all.push_back(argument.c_str());
  }
  ::testing::internal::CaptureStdout();
  ::testing::internal::CaptureStderr();
  const int exit_code = run_program(static_cast<int>(all.size()), all.data());
  std::string out = ::testing::internal::GetCapturedStdout();
  return {exit_code, std::move(out), ::testing::internal::GetCapturedStderr()};
}

/// Tests with a folder of their own.
class ProgramFixture : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = make_temporary_folder();
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }

  /// The config of a small model on 12 samples, in batches of four unless `training` says otherwise,
  /// that writes to "out". `sections`: more of the file.
  std::string write_tiny_config(
      const std::string& training = "global_batch_size: 4, micro_batch_size: 2, threads: 1",
      const std::string& sections = "") const {
    std::ofstream(folder_ / "corpus.txt") << std::string(33 * 12, 'a');
    std::ofstream(folder_ / "run.yaml")
        << "model: {preset: tiny}\n"
        << "data: {files: [" << (folder_ / "corpus.txt").string() << "], sequence_length: 32}\n"
        << "training: {" << training << ", output: " << (folder_ / "out").string() << "}\n"
        << "optimizer: {learning_rate: 1e-3}\n"
        << sections;
    return (folder_ / "run.yaml").string();
  }

  std::filesystem::path folder_;
};

} // namespace palimpsest::testing
