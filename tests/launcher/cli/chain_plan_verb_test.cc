// Covers: launcher/compose/chain_plan.cc
#include <palimpsest/launcher/compose/chain_plan.h>

#include <palimpsest/core/config/loader.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/memory/planners/chain_file.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <string>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;

class ChainPlanVerb : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    std::ifstream file(PALIMPSEST_TEST_DATA "/planner/rotor_cases.json");
    published_ = nlohmann::json::parse(file)["cases"];
    path_ = write(published_.at(3)); // sizes 3 4 3 4 2, workspaces; needs 29, all tapes 46
  }
  std::string write(const nlohmann::json& chain) const {
    const std::string path = (folder_ / "chain.json").string();
    std::ofstream(path) << chain;
    return path;
  }
  Outcome plan(const std::string& budget, const std::string& planner = "dynamic_programming")
      const {
    return run({"plan", "--chain", path_, "--planner", planner, "--budget", budget, "--json"});
  }
  nlohmann::json published_;
  std::string path_;
};

TEST_F(ChainPlanVerb, PrintsThePublishedOptimum) {
  for (const nlohmann::json& rotor : published_) {
    path_ = write(rotor);
    const Outcome outcome = plan(rotor.at("budget").dump());
    const nlohmann::json said = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(said.at("planner"), "dynamic_programming");
    EXPECT_EQ(said.at("budget"), rotor.at("budget"));
    EXPECT_EQ(said.at("feasible"), rotor.at("feasible"));
    EXPECT_EQ(said.at("least_budget"), rotor.at("min_budget_persistent"));
    if (!rotor.at("feasible").get<bool>()) {
      EXPECT_EQ(outcome.exit_code, 2);
      EXPECT_FALSE(said.contains("operations"));
      continue;
    }
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(said.at("makespan"), rotor.at("optimal_makespan"));
    EXPECT_LE(said.at("peak"), rotor.at("budget"));
    // the operations take the makespan
    double seconds = 0;
    for (const nlohmann::json& op : said.at("operations")) {
      const int stage = op.at("stage").get<int>() - 1;
      const std::string kind = op.at("op");
      seconds += kind == "LOSS" ? rotor.at("loss_bw").get<double>()
                                : rotor.at(kind == "B" ? "bw" : "fw").at(stage).get<double>();
      EXPECT_EQ(op.contains("tape"), kind == "Fall" || kind == "B");
    }
    EXPECT_EQ(seconds, rotor.at("optimal_makespan"));
  }
}

TEST_F(ChainPlanVerb, RefusesABudgetOneByteTooSmallAndTakesOneJustEnough) {
  const Outcome enough = plan("29");
  EXPECT_EQ(enough.exit_code, 0) << enough.err;
  EXPECT_EQ(nlohmann::json::parse(enough.out).at("peak"), 29);
  const Outcome small = plan("28");
  EXPECT_EQ(small.exit_code, 2);
  EXPECT_THAT(
      small.err, HasSubstr("a budget of 28 bytes is too small; it needs at least 29 bytes"));
  EXPECT_EQ(nlohmann::json::parse(small.out).at("least_budget"), 29);
}

TEST_F(ChainPlanVerb, RefusesBudgetsThatAreNone) {
  for (const char* budget :
       {"0", "-5", "-1GiB", "many", "", "1e30", "99999999999999999999", "0.5"}) {
    const Outcome outcome = plan(budget);
    EXPECT_EQ(outcome.exit_code, 2) << budget;
    EXPECT_EQ(outcome.out, "") << budget;
    EXPECT_THAT(
        outcome.err,
        AllOf(
            HasSubstr(fmt::format("--budget: '{}' is not allowed; give a size", budget)),
            HasSubstr("500 MB or 8GiB")))
        << budget;
  }
  EXPECT_EQ(plan("8EiB").exit_code, 2);
  EXPECT_EQ(plan("1000TiB").exit_code, 0);
  EXPECT_EQ(nlohmann::json::parse(plan("1000TiB").out).at("makespan"), 29); // all tapes
}

TEST_F(ChainPlanVerb, EveryPlannerPlansByName) {
  for (const Planner& planner : planners()) {
    const Outcome outcome = plan("46", planner.name);
    ASSERT_EQ(outcome.exit_code, 0) << planner.name << ' ' << outcome.err;
    const nlohmann::json said = nlohmann::json::parse(outcome.out);
    EXPECT_EQ(said.at("planner"), planner.name);
    EXPECT_LE(said.at("peak"), 46);
    EXPECT_GE(said.at("makespan"), 29);
  }
  EXPECT_THAT(plan("46", "rotor").err, HasSubstr("planner 'rotor' is unknown"));
}

TEST_F(ChainPlanVerb, PrintsATableToo) {
  const Outcome outcome = run({"plan", "--chain", path_, "--budget", "46"});
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("makespan      29\npeak          46 of a budget of 46\n"));
  EXPECT_THAT(outcome.out, HasSubstr("Fall 4\nLOSS\nB 4\n"));
}

// Sizes of a million and a little have no divisor that a table could count in: 8,192 slots hold
// what keeps everything. Where they are multiples of a million, a slot is the million.
TEST_F(ChainPlanVerb, SaysToWhichSlotsItRounded) {
  nlohmann::json chain = published_.at(3);
  for (const char* sizes : {"a", "abar", "ftmp", "btmp"}) {
    for (nlohmann::json& size : chain.at(sizes)) {
      size = size.get<int64_t>() * 1'000'000;
    }
  }
  chain["loss_tmp"] = chain["loss_tmp"].get<int64_t>() * 1'000'000;
  path_ = write(chain);
  EXPECT_FALSE(nlohmann::json::parse(plan("35MB").out).contains("slot_bytes"));
  for (nlohmann::json& size : chain.at("abar")) {
    size = size.get<int64_t>() + 1;
  }
  path_ = write(chain);
  const nlohmann::json everything = nlohmann::json::parse(plan("1GB", "none").out);
  const int64_t slot = (everything.at("peak").get<int64_t>() + 8191) / 8192;
  const Outcome rounded = plan("35MB");
  EXPECT_EQ(nlohmann::json::parse(rounded.out).at("slot_bytes"), slot) << rounded.out;
  EXPECT_THAT(
      run({"plan", "--chain", path_, "--budget", "35MB"}).out,
      HasSubstr(fmt::format(
          "slots         of {}: sizes were rounded up to them, so a faster plan may exist\n",
          slot)));
  for (const auto& [budget, planner] :
       {std::pair("1GB", "dynamic_programming"), std::pair("40MB", "chen_greedy")}) {
    const Outcome exact = plan(budget, planner);
    ASSERT_EQ(exact.exit_code, 0) << exact.err;
    EXPECT_FALSE(nlohmann::json::parse(exact.out).contains("slot_bytes")) << planner;
  }
}

TEST_F(ChainPlanVerb, WrongUseEndsWithTwo) {
  const std::vector<std::vector<std::string>> wrongs = {
      {"plan"},
      {"plan", "--chain", path_},
      {"plan", "--budget", "46"},
      {"plan", "--json"},
      {"plan", "run.yaml", "--chain", path_, "--budget", "46"},
      {"plan", "--chain", "/nonexistent/chain.json", "--budget", "46"},
      {"plan", "--chain", folder_.string(), "--budget", "46"},
      {"plan", "--chain", path_, "--budget", "46", "--save-chain", "x.json"},
  };
  for (const auto& wrong : wrongs) {
    const Outcome outcome = run(wrong);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.err;
    EXPECT_EQ(outcome.out, "");
  }
  std::ofstream(path_) << "[1, 2";
  EXPECT_EQ(plan("46").exit_code, 2);
  EXPECT_THAT(plan("46").err, HasSubstr(path_ + ":1: not valid JSON"));
}

TEST_F(ChainPlanVerb, SavesTheMeasuredChainOfAModel) {
  const std::string config = write_tiny_config();
  const std::string saved = (folder_ / "saved.json").string();
  const Outcome outcome = run({"plan", config, "--save-chain", saved});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  std::ifstream file(saved);
  const nlohmann::json chain = nlohmann::json::parse(file);
  // embedding, four layers of attention and MLP
  EXPECT_EQ(chain.at("L"), 9);
  EXPECT_EQ(chain.at("names").at(1), "model.layers.0.self_attn");
  palimpsest::Run planned(load_config(config, {}));
  const ModelCost& cost = planned.plans().cost();
  for (size_t stage = 0; stage < 9; ++stage) {
    const BlockCost& block = cost.blocks[stage];
    EXPECT_EQ(chain.at("a").at(stage + 1), block.value_bytes.front());
    EXPECT_EQ(chain.at("abar").at(stage), block.full_bytes + block.value_bytes.front());
    EXPECT_EQ(chain.at("lean").at("abar").at(stage), block.lean_bytes + block.value_bytes.front());
  }
  path_ = saved;
  const Outcome planned_again = plan("1GiB");
  EXPECT_EQ(planned_again.exit_code, 0) << planned_again.err;
  EXPECT_EQ(run({"plan", config, "--save-chain", "/nonexistent/folder/chain.json"}).exit_code, 1);
}

} // namespace
} // namespace palimpsest
