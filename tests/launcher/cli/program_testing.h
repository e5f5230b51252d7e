#pragma once

// The program as its users meet it: arguments in, exit code and what it printed out.

#include <palimpsest/launcher/cli/program.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gtest/gtest.h>

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
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
  std::filesystem::path folder_;
};

} // namespace palimpsest::testing
