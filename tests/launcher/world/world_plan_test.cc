// Covers: launcher/cli/world_plan.cc

#include <palimpsest/launcher/cli/world_plan.h>

#include <palimpsest/tests/launcher/cli/program_testing.h>
#include <palimpsest/tests/launcher/world/world_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;

class WorldPlan : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    path_ = (folder_ / "run.yaml").string();
    std::ofstream(path_) << "model: {preset: bench-30m}\n"
                            "data: {files: [nothing-there.txt], sequence_length: 512}\n"
                            "training: {global_batch_size: 64}\n"
                            "precision: bf16\n"
                            "optimizer: {learning_rate: 1e-3}\n";
  }
  Outcome plan(const std::vector<std::string>& more) const {
    std::vector<std::string> arguments = {"plan", path_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return run(arguments);
  }
  std::string path_;
};

TEST_F(WorldPlan, PrintsTheBestLayoutsWithoutDataOrDevice) {
  const Outcome outcome = plan({"--hardware", "h100-80", "--world", "16", "--json"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const nlohmann::json said = nlohmann::json::parse(outcome.out);
  EXPECT_EQ(said.at("world"), 16);
  EXPECT_EQ(said.at("hardware").at("name"), "h100-80");
  EXPECT_EQ(said.at("tokens_per_sample"), 512);
  ASSERT_EQ(said.at("layouts").size(), 10U);
  double before = said.at("layouts")[0].at("tokens_per_second");
  for (const nlohmann::json& layout : said.at("layouts")) {
    EXPECT_EQ(layout.at("ranks"), 16);
    EXPECT_EQ(layout.at("shard").get<int>() * layout.at("replicate").get<int>(), 16);
    EXPECT_EQ(layout.at("global_batch"), 64);
    EXPECT_EQ(layout.at("micro_batch").get<int>() * layout.at("accumulation").get<int>(), 4);
    EXPECT_NEAR(
        layout.at("tokens_per_second").get<double>() * layout.at("step_time_s").get<double>(),
        64 * 512,
        1);
    EXPECT_LE(layout.at("tokens_per_second"), before);
    before = layout.at("tokens_per_second");
    double parts = 0;
    for (const char* part : {"parameter", "gradient", "optimizer", "activation", "workspace"}) {
      parts += layout.at(std::string(part) + "_bytes").get<double>();
    }
    EXPECT_EQ(parts, layout.at("peak_device_bytes").get<double>());
  }
  EXPECT_EQ(said.at("smallest").at("ranks"), 1);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "runs"));

  const Outcome text = this->plan({"--hardware", "h100-80", "--world", "16"});
  EXPECT_THAT(
      text.out,
      AllOf(
          HasSubstr("16 ranks of h100-80"),
          HasSubstr("tokens/s"),
          HasSubstr("1 rank (1 node of 8)")));
}

// It shares nothing out, so that all ZeRO stages are one layout.
TEST_F(WorldPlan, OneRankHasOneLayoutOfABatch) {
  const auto stages = [&](const std::vector<std::string>& more) {
    std::vector<std::string> arguments = {"--hardware", "h100-80", "--json"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = plan(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    std::set<int> zero;
    std::set<int> micro_batches;
    const nlohmann::json layouts = nlohmann::json::parse(outcome.out).at("layouts");
    for (const nlohmann::json& layout : layouts) {
      zero.insert(layout.at("zero").get<int>());
      micro_batches.insert(layout.at("micro_batch").get<int>());
    }
    EXPECT_EQ(micro_batches.size(), layouts.size());
    return zero;
  };
  EXPECT_EQ(stages({}), (std::set<int>{0}));
  EXPECT_EQ(stages({"parallel.zero=2"}), (std::set<int>{2})); // where it is asked for
}

TEST_F(WorldPlan, SaysWhatWouldFitWhereNothingDoes) {
  const std::string hardware = (folder_ / "small.json").string();
  std::ofstream(hardware)
      << "{\"flops\": {\"fp32\": 1e12}, \"memory\": 150000000, \"bandwidth\": 1e11, "
         "\"network\": {\"bandwidth\": 1e9}}";
  const Outcome outcome = plan({"--hardware", hardware, "--world", "2"});
  EXPECT_EQ(outcome.exit_code, 2);
  EXPECT_THAT(
      outcome.err,
      AllOf(
          HasSubstr("--hardware: no layout of 2 ranks fits 143 MiB a rank"),
          HasSubstr("ranks can train it with what there is")));
}

// The budget that is named is enough, and a byte less is not.
TEST_F(WorldPlan, NamesTheLeastBudget) {
  for (const std::vector<std::string>& more :
       {std::vector<std::string>{"--world", "4"},
        std::vector<std::string>{"--world", "1", "training.global_batch_size=6"},
        std::vector<std::string>{"--world", "4", "parallel.zero=1", "precision=fp32"}}) {
    const auto with_budget = [&](const std::string& budget) {
      std::vector<std::string> arguments = {
          "--hardware", "h100-80", "--json", "memory.device_budget=" + budget};
      arguments.insert(arguments.end(), more.begin(), more.end());
      return plan(arguments);
    };
    const Outcome nothing = with_budget("1");
    EXPECT_EQ(nothing.exit_code, 2);
    const auto said = nlohmann::json::parse(nothing.out);
    const auto least = static_cast<int64_t>(said.at("least_budget_bytes").get<double>());
    EXPECT_THAT(
        nothing.err,
        AllOf(
            HasSubstr("memory.device_budget: no layout of " + more[1] + " rank"),
            HasSubstr(fmt::format("({} bytes), by zero ", least)),
            HasSubstr("; give that much")));
    const std::string parts = nothing.err.substr(nothing.err.find("at a time: "));
    EXPECT_THAT(parts, HasSubstr("MiB, "));
    const Outcome enough = with_budget(std::to_string(least));
    EXPECT_EQ(enough.exit_code, 0) << enough.err;
    EXPECT_EQ(nlohmann::json::parse(enough.out).at("least_budget_bytes"), 0);
    EXPECT_EQ(with_budget(std::to_string(least - 1)).exit_code, 2);
  }
}

TEST_F(WorldPlan, RefusesOptionsThatMeanNothingBesideIt) {
  EXPECT_EQ(plan({"--hardware", "h100-80", "--text"}).exit_code, 2);
  EXPECT_EQ(run({"plan", "--hardware", "h100-80"}).exit_code, 2);
  const Outcome nothing = plan({"--json"});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_THAT(nothing.err, HasSubstr("--json"));
  EXPECT_THAT(plan({"--hardware", "h200"}).err, HasSubstr("'h200' is neither a file nor one of"));
}

} // namespace
} // namespace palimpsest
