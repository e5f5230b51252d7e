// Covers: launcher/compose/rank_session.cc
// Golden models on two ranks under every launcher, and errors that are told once.

#include <palimpsest/tests/launcher/program/program_testing.h>
#include <palimpsest/tests/support/files/tensors.h>

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <map>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using testing::floats;
using testing::Starter;

class Launchers : public testing::ProgramRanks,
                  public ::testing::WithParamInterface<std::pair<Starter, const char*>> {
 protected:
  void SetUp() override {
    ProgramRanks::SetUp();
    if (GetParam().first == Starter::kMpirun && !has_mpirun()) {
      GTEST_SKIP() << "there is no mpirun here";
    }
  }
};

TEST_P(Launchers, AGoldenModelTrainsAsItsReference) {
  const auto& [starter, zero] = GetParam();
  const std::string config = golden_config("llama-tiny", "activation_checkpointing: full\n");
  const pid_t process = train(starter, 2, config, {std::string("parallel.zero=") + zero});
  ASSERT_EQ(wait_for(process, 60s), 0) << out() << err();
  const auto golden =
      floats(std::string(PALIMPSEST_TEST_DATA) + "/models/llama-tiny/golden.safetensors");
  const auto records = metrics();
  ASSERT_EQ(records.size(), 3U);
  for (size_t step = 0; step < 3; ++step) {
    const double loss = golden.at("losses")[step];
    const double norm = golden.at("grad_norms")[step];
    EXPECT_NEAR(records[step]["loss"].get<double>(), loss, 1e-5 * loss);
    EXPECT_NEAR(records[step]["grad_norm"].get<double>(), norm, 1e-5 * norm);
  }
  size_t compared = 0;
  size_t different = 0;
  for (const auto& [name, values] : floats(output() / "model/model.safetensors")) {
    const std::vector<float>& expected = golden.at("step3." + name);
    for (size_t index = 0; index < values.size(); ++index) {
      const double difference = std::abs(values[index] - expected[index]);
      EXPECT_LE(difference, 2 * 1e-3 * 3) << name;
      different += difference > 1e-5 ? 1 : 0;
    }
    compared += values.size();
  }
  EXPECT_GT(compared, 0U);
  EXPECT_LE(different, compared / 200);
}

std::string starter_name(const ::testing::TestParamInfo<std::pair<Starter, const char*>>& info) {
  constexpr const char* kNames[] = {"Launch", "LaunchWithoutMpirun", "Mpirun", "Torchrun"};
  return kNames[static_cast<size_t>(info.param.first)];
}

INSTANTIATE_TEST_SUITE_P(
    Starters,
    Launchers,
    ::testing::Values(
        std::pair(Starter::kLaunch, "3"),
        std::pair(Starter::kLaunchWithoutMpirun, "2"),
        std::pair(Starter::kMpirun, "1"),
        std::pair(Starter::kTorchrun, "3")),
    starter_name);

size_t count(const std::string& text, const std::string& part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
    ++found;
  }
  return found;
}

using ProgramErrors = testing::ProgramRanks;

TEST_F(ProgramErrors, WhatAllRanksSeeIsToldOnce) {
  const std::string config = golden_config("llama-tiny");
  const std::string missing = (folder_ / "nothing.bin").string();
  for (const Starter starter : {Starter::kLaunch, Starter::kTorchrun}) {
    const pid_t process = train(starter, 2, config, {"data.files=[" + missing + "]"});
    EXPECT_EQ(wait_for(process, 60s), 2);
    EXPECT_EQ(count(out() + err(), "palimpsest: data.files"), 1U) << out() << err();
  }
}

// What differs may be anything, also what decides how much the ranks exchange while they plan.
TEST_F(ProgramErrors, RanksWithDifferentConfigsStopNamingTheKey) {
  const std::string output = "training.output=" + (folder_ / "run").string();
  const std::string line = std::string(PALIMPSEST_PROGRAM) + " train " +
      (folder_ / "run").string() + "$R.yaml " + output + " --rank $R --world-size 2" +
      " --local-rank $R --master-address 127.0.0.1 --master-port " +
      std::to_string(20000 + getpid() % 20000);
  for (const auto& [difference, named] :
       {std::pair("scheduler: linear", "name: linear"),
        std::pair("parallel: {zero: 2}", "zero: 2"),
        std::pair("activation_checkpointing: full", "policy: full")}) {
    const auto replace = std::filesystem::copy_options::overwrite_existing;
    std::filesystem::copy_file(golden_config("llama-tiny"), folder_ / "run0.yaml", replace);
    const std::string other = golden_config("llama-tiny", std::string(difference) + "\n");
    std::filesystem::copy_file(other, folder_ / "run1.yaml", replace);
    const pid_t process = start(
        {"/bin/sh", "-c", "R=1; " + line + " & R=0; " + line + "; code=$?; wait; exit $code"});
    EXPECT_EQ(wait_for(process, 60s), 2);
    EXPECT_THAT(err(), HasSubstr("differs"));
    EXPECT_THAT(err(), HasSubstr(named));
  }
}

} // namespace
} // namespace palimpsest
