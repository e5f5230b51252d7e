// Covers: launcher/compose/run_report.cc
// Covers: launcher/compose/planner_curve.cc

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/plan/plan.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <set>

namespace palimpsest {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using testing::Outcome;
using testing::run;

class RunReports : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    path_ = (folder_ / "run.yaml").string();
    std::ofstream(folder_ / "corpus.txt") << std::string(33 * 10, 'a'); // two full steps and a half
    std::ofstream(path_) << fmt::format(
        "model: {{preset: tiny}}\n"
        "data: {{files: [{}], sequence_length: 32}}\n"
        "training: {{global_batch_size: 4, micro_batch_size: 2, threads: 1, output: {}}}\n"
        "optimizer: {{learning_rate: 1e-3}}\n"
        "activation_checkpointing: {{policy: key_layers, count: 1}}\n",
        (folder_ / "corpus.txt").string(),
        (folder_ / "out").string());
  }
  std::string file(const std::string& name) const {
    return (folder_ / name).string();
  }
  /// The data in a page.
  json data_of(const std::string& name) const {
    const std::string page = read_file(file(name));
    const std::string open = R"(id="report">)";
    const size_t begin = page.find(open) + open.size();
    return json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  }
  std::string path_;
};

TEST_F(RunReports, APlansPageHoldsItsOperationsLayersAndEveryPlanner) {
  const Outcome text = run({"plan", path_, "--text"});
  const Outcome outcome = run({"plan", path_, "--html", file("plan.html")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("report: " + file("plan.html")));
  const json report = data_of("plan.html");
  EXPECT_EQ(report["kind"], "plan");
  EXPECT_EQ(report["title"], "run.yaml");
  EXPECT_THAT(report["config"].get<std::string>(), HasSubstr("key_layers"));
  std::string operations;
  for (const json& op : report["ops"]["text"]) {
    operations += op.get<std::string>() + "\n";
  }
  EXPECT_EQ(parse_plan(operations), parse_plan(text.out));
  EXPECT_FALSE(report["ops"].contains("measured"));

  std::vector<int64_t> totals(report["ops"]["text"].size());
  for (const auto& [category, bytes] : report["ops"]["bytes"].items()) {
    for (size_t op = 0; op < totals.size(); ++op) {
      totals[op] += bytes[op].get<int64_t>();
    }
  }
  EXPECT_EQ(report["summary"]["predicted_peak_bytes"], std::ranges::max(totals));

  ASSERT_EQ(report["layers"].size(), 4U);
  int kept = 0;
  for (const json& layer : report["layers"]) {
    kept += layer["choice"] == "kept";
    EXPECT_EQ(layer["seconds"] > 0, layer["choice"] == "recomputed");
  }
  EXPECT_EQ(kept, 1);

  std::set<std::string> planners;
  int chosen = 0;
  for (const json& point : report["planners"]) {
    planners.insert(point["planner"]);
    if (point["chosen"]) {
      ++chosen;
      EXPECT_EQ(point["peak_bytes"], report["summary"]["predicted_peak_bytes"]);
      EXPECT_EQ(point["planner"], "key_layers");
    }
  }
  EXPECT_EQ(chosen, 1);
  for (const char* planner : {"none", "full", "chen_greedy", "revolve", "dynamic_programming"}) {
    EXPECT_TRUE(planners.contains(planner)) << planner;
  }
}

// An epoch's last step has one micro-batch instead of two: the one before it is shown.
TEST_F(RunReports, ATrainingsPageHoldsTheLastFullStepAsItRan) {
  const Outcome outcome =
      run({"train", path_, "--html", file("train.html"), "--json", file("train.json")});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const json report = json::parse(read_file(file("train.json")));
  EXPECT_EQ(data_of("train.html"), report);
  EXPECT_EQ(report["kind"], "train");
  EXPECT_EQ(report["title"], "run.yaml, step 2");
  std::ifstream metrics(folder_ / "out" / "metrics.jsonl");
  std::vector<json> steps;
  for (std::string line; std::getline(metrics, line);) {
    steps.push_back(json::parse(line));
  }
  ASSERT_EQ(steps.size(), 3U);
  const json& summary = report["summary"];
  EXPECT_EQ(summary["measured_peak_bytes"], steps[1]["peak_device_bytes"]);
  EXPECT_EQ(summary["measured_step_s"], steps[1]["step_time_s"]);
  EXPECT_EQ(summary["tokens_per_s"], steps[1]["tokens_per_s"]);
  const json& measured = report["ops"]["measured"];
  ASSERT_EQ(measured["bytes"].size(), report["ops"]["text"].size());
  const auto bytes = measured["bytes"].get<std::vector<int64_t>>();
  EXPECT_EQ(std::ranges::max(bytes), summary["measured_peak_bytes"]);
  const json& course = report["course"];
  ASSERT_EQ(course["step"], (json{1, 2, 3}));
  for (size_t index = 0; index < steps.size(); ++index) {
    for (const char* field : {"loss", "grad_norm", "learning_rate", "tokens_per_s"}) {
      EXPECT_EQ(course[field][index], steps[index][field]) << field;
    }
  }
  EXPECT_TRUE(course["evaluations"]["step"].empty());
  const auto begins = measured["begin_s"].get<std::vector<double>>();
  EXPECT_TRUE(std::ranges::is_sorted(begins));
  EXPECT_LE(measured["end_s"].back(), summary["measured_step_s"]);
}

TEST_F(RunReports, AFileThatCannotBeWrittenIsKnownBeforeTheFirstStep) {
  const std::string nowhere = "/nonexistent/folder/report.html";
  for (const char* verb : {"plan", "train"}) {
    const Outcome outcome = run({verb, path_, "--html", nowhere});
    EXPECT_EQ(outcome.exit_code, 1) << verb;
    EXPECT_THAT(outcome.err, HasSubstr("/nonexistent/folder"));
  }
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out" / "metrics.jsonl"));
  EXPECT_EQ(run({"plan", path_, "--text", "--html", file("a.html")}).exit_code, 2);
}

} // namespace
} // namespace palimpsest
