// Covers: launcher/compose/rank_session.cc
// Golden models on two ranks under every launcher, and errors that are told once.

#include <palimpsest/tests/launcher/program/program_testing.h>
#include <palimpsest/tests/support/files/tensors.h>

#include <gmock/gmock.h>

#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using testing::floats;
using testing::kPatience;
using testing::Starter;

using Tensors = std::map<std::string, std::vector<float>>;

Tensors golden_of(const std::string& model) {
  return floats(std::string(PALIMPSEST_TEST_DATA) + "/models/" + model + "/golden.safetensors");
}

void expect_golden_steps(const std::vector<nlohmann::json>& records, const Tensors& golden) {
  ASSERT_EQ(records.size(), 3U);
  for (size_t step = 0; step < 3; ++step) {
    const double loss = golden.at("losses")[step];
    const double norm = golden.at("grad_norms")[step];
    EXPECT_NEAR(records[step]["loss"].get<double>(), loss, 1e-5 * loss);
    EXPECT_NEAR(records[step]["grad_norm"].get<double>(), norm, 1e-5 * norm);
  }
}

using GoldenRun = std::tuple<std::pair<Starter, const char*>, const char*>;

class Launchers : public testing::ProgramRanks, public ::testing::WithParamInterface<GoldenRun> {
 protected:
  void SetUp() override {
    ProgramRanks::SetUp();
    if (const std::string reason = missing(std::get<0>(GetParam()).first); !reason.empty()) {
      GTEST_SKIP() << reason;
    }
  }
};

TEST_P(Launchers, AGoldenModelTrainsAsItsReference) {
  const auto& [start, model] = GetParam();
  const auto& [starter, zero] = start;
  const std::string config = golden_config(model, "activation_checkpointing: full\n");
  const pid_t process = train(starter, 2, config, {std::string("parallel.zero=") + zero});
  ASSERT_EQ(wait_for(process, kPatience), 0) << out() << err();
  const Tensors golden = golden_of(model);
  expect_golden_steps(metrics(), golden);
  size_t compared = 0;
  size_t different = 0;
  const auto trained = floats(output() / "model/model.safetensors");
  for (const auto& [key, expected] : golden) {
    if (!key.starts_with("step3.")) {
      continue;
    }
    const std::vector<float>& values = trained.at(key.substr(std::strlen("step3.")));
    ASSERT_EQ(values.size(), expected.size()) << key;
    for (size_t index = 0; index < values.size(); ++index) {
      const double difference = std::abs(values[index] - expected[index]);
      EXPECT_LE(difference, 2 * 1e-3 * 3) << key;
      different += difference > 1e-5 ? 1 : 0;
    }
    compared += values.size();
  }
  EXPECT_GT(compared, 100000U);
  EXPECT_LE(different, compared / 200);
}

std::string golden_run_name(const ::testing::TestParamInfo<GoldenRun>& info) {
  const std::string model = std::get<1>(info.param);
  return name_of(std::get<0>(info.param).first) + (model == "llama-tiny" ? "" : "Tied");
}

INSTANTIATE_TEST_SUITE_P(
    Starters,
    Launchers,
    ::testing::Combine(
        ::testing::Values(
            std::pair(Starter::kLaunch, "3"),
            std::pair(Starter::kLaunchWithoutMpirun, "2"),
            std::pair(Starter::kMpirun, "1"),
            std::pair(Starter::kTorchrun, "3"),
            std::pair(Starter::kVariables, "0")),
        ::testing::Values("llama-tiny", "llama-tied")),
    golden_run_name);

using Backends = testing::ProgramRanks;

// As a build without MPI does: rank and meeting point are mpirun's, the messages go over TCP.
TEST_F(Backends, RanksOfMpirunAlsoTalkOverGloo) {
  if (const std::string reason = missing(Starter::kMpirun); !reason.empty()) {
    GTEST_SKIP() << reason;
  }
  const pid_t process =
      train(Starter::kMpirun, 2, golden_config("llama-tiny"), {"parallel.backend=gloo"});
  ASSERT_EQ(wait_for(process, kPatience), 0) << out() << err();
  expect_golden_steps(metrics(), golden_of("llama-tiny"));
}

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
  for (const Starter starter :
       testing::usable({Starter::kLaunch, Starter::kTorchrun, Starter::kVariables})) {
    SCOPED_TRACE(name_of(starter));
    const pid_t process = train(starter, 2, config, {"data.files=[" + missing + "]"});
    EXPECT_EQ(wait_for(process, kPatience), code_of_job(starter, 2));
    EXPECT_EQ(count(out() + err(), "palimpsest: data.files"), 1U) << out() << err();
    if (starter == Starter::kTorchrun) { // its own code is 1 for any; it tells the rank's
      EXPECT_THAT(err(), HasSubstr("exitcode  : 2"));
    }
    // and what each finds by itself, before the ranks meet
    const pid_t early = train(starter, 2, config, {"training.stepz=3"});
    EXPECT_EQ(wait_for(early, kPatience), code_of_job(starter, 2));
    EXPECT_EQ(count(out() + err(), "training.stepz: unknown key"), 1U) << out() << err();
  }
}

TEST_F(ProgramErrors, AMissingRankIsNamedWhenTheTimeToStartIsOver) {
  const std::string config = golden_config("llama-tiny");
  const auto start_rank = [&](int rank) {
    return train_command(
        config,
        {"parallel.startup_timeout=1",
         "--rank=" + std::to_string(rank),
         "--world-size=2",
         "--local-rank=" + std::to_string(rank),
         "--master-address=127.0.0.1",
         "--master-port=" + std::to_string(20000 + getpid() % 20000)});
  };
  EXPECT_EQ(wait_for(start(start_rank(0))), 1);
  EXPECT_THAT(err(), HasSubstr("rank 1 did not come to 127.0.0.1:"));
  EXPECT_THAT(err(), HasSubstr("within 1 s, 1 of 2 ranks did"));
  EXPECT_THAT(err(), HasSubstr("parallel.startup_timeout sets how long they are waited for"));
  EXPECT_EQ(wait_for(start(start_rank(1))), 1);
  EXPECT_THAT(err(), HasSubstr("rank 0 could not be reached at 127.0.0.1:"));
  EXPECT_THAT(err(), HasSubstr("parallel.startup_timeout sets how long it is tried"));
  EXPECT_THAT(err(), HasSubstr("within 1 s"));
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
    EXPECT_EQ(wait_for(process, kPatience), 2);
    EXPECT_THAT(err(), HasSubstr("differs"));
    EXPECT_THAT(err(), HasSubstr(named));
  }
}

} // namespace
} // namespace palimpsest
