// Covers: page.cc

#include <palimpsest/memory/report/page.h>
#include <palimpsest/memory/report/report.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <limits>

namespace palimpsest {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;

Report small() {
  Report report{.kind = "train", .title = "a <b> & c", .budget_bytes = 5000};
  report.summary = {.predicted_peak_bytes = 1200, .measured_step_s = 0.25};
  report.facts = {{"model", "llama"}};
  ReportOp first{.text = "FORWARD block=0", .kind = "forward", .subject = "layers.0"};
  first.lane = Lane::kCompute;
  first.end_s = 0.125;
  first.bytes[PlanCategory::kParam] = 1000;
  first.bytes[PlanCategory::kTape] = 200;
  ReportOp second = first;
  second.text = "DROP slot=tape(0,mb=0)";
  second.lane.reset();
  report.ops = {first, second};
  report.measured = {{.end_s = 0.2, .bytes = 1100}, {.begin_s = 0.2, .end_s = 0.25, .bytes = 1000}};
  report.layers = {{.name = "layers.0", .choice = "kept", .bytes = 200, .full_bytes = 200}};
  report.planners = {{.planner = "every_n", .setting = "n 2", .peak_bytes = 900, .seconds = 1.5}};
  return report;
}

TEST(Report, HasItsFieldsByColumn) {
  const json told = json::parse(to_json(small()));
  EXPECT_EQ(told["kind"], "train");
  EXPECT_EQ(told["budget_bytes"], 5000);
  EXPECT_EQ(told["summary"]["predicted_peak_bytes"], 1200);
  EXPECT_EQ(told["summary"]["measured_step_s"], 0.25);
  EXPECT_TRUE(told["summary"]["tokens_per_s"].is_null());
  EXPECT_EQ(told["facts"], json::parse(R"([["model", "llama"]])"));
  EXPECT_EQ(told["lanes"].size(), 5U);
  const json& ops = told["ops"];
  EXPECT_EQ(ops["text"][1], "DROP slot=tape(0,mb=0)");
  EXPECT_EQ(ops["subjects"], json::parse(R"(["layers.0"])")); // named once
  EXPECT_EQ(ops["subject"], json::parse("[0, 0]"));
  EXPECT_EQ(ops["lane"], json::parse("[0, -1]"));
  EXPECT_EQ(ops["end_s"], json::parse("[0.125, 0.125]"));
  // Categories that hold nothing anywhere are left out.
  EXPECT_EQ(ops["bytes"], json::parse(R"({"param": [1000, 1000], "tape": [200, 200]})"));
  EXPECT_EQ(ops["measured"]["bytes"], json::parse("[1100, 1000]"));
  EXPECT_EQ(told["layers"][0]["choice"], "kept");
  EXPECT_EQ(told["planners"][0]["setting"], "n 2");
  EXPECT_FALSE(told["planners"][0]["chosen"]);
}

TEST(Report, LeavesOutWhatIsNotThereAndWhatIsNoNumber) {
  Report report = small();
  report.measured.clear();
  report.summary.tokens_per_s = std::numeric_limits<double>::quiet_NaN();
  report.facts = {{"model", "caf\xe9"}}; // Latin-1 in a file's name
  const json told = json::parse(to_json(report));
  EXPECT_FALSE(told["ops"].contains("measured"));
  EXPECT_TRUE(told["summary"]["tokens_per_s"].is_null());
  EXPECT_EQ(told["facts"][0][1], "caf\xef\xbf\xbd");
}

TEST(Report, RowsOfTheStackAreAnArrayOfTheirMembers) {
  const std::vector<StackRow> rows = {
      {.name = "baseline", .peak_device_bytes = 400, .percent = 100, .step_time_s = 2},
      {.name = "+ lean tape", .peak_device_bytes = 100, .percent = 25, .loss_difference = 1e-7}};
  const json told = json::parse(to_json(rows));
  ASSERT_EQ(told.size(), 2U);
  EXPECT_EQ(told[1]["name"], "+ lean tape");
  EXPECT_EQ(told[1]["percent"], 25.0);
  EXPECT_EQ(told[1]["loss_difference"], 1e-7);
  for (const char* field :
       {"peak_device_bytes",
        "predicted_peak_bytes",
        "peak_host_bytes",
        "peak_disk_bytes",
        "peak_rss_bytes",
        "step_time_s",
        "tokens_per_s",
        "recompute_share",
        "grad_norm_difference"}) {
    EXPECT_TRUE(told[0].contains(field)) << field;
  }
}

// What a user's text contains ends no element of the page and starts none.
TEST(Page, HoldsTheReportWhateverIsWrittenInIt) {
  Report report = small();
  report.config = "x: </script><script>alert(1)</script>{{script}}";
  const std::string page = to_html(report);
  EXPECT_THAT(page, HasSubstr("<title>a &lt;b> &amp; c"));
  EXPECT_THAT(page, Not(HasSubstr("alert(1)</script>")));
  const std::string open = R"(<script type="application/json" id="report">)";
  const size_t begin = page.find(open) + open.size();
  const json held = json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(held, json::parse(to_json(report)));
}

TEST(Page, IsOneFileThatFetchesNothing) {
  const std::string page = to_html(small());
  for (const char* sign :
       {"http://", "https://", "src=", "@import", "url(http", "fetch(", "import("}) {
    std::string rest = page;
    const size_t namespace_at = rest.find("http://www.w3.org/2000/svg"); // a name, not an address
    if (namespace_at != std::string::npos) {
      rest.erase(namespace_at, 26);
    }
    EXPECT_THAT(rest, Not(HasSubstr(sign)));
  }
  EXPECT_THAT(page, HasSubstr("default-src 'none'")); // and the browser would refuse to
  EXPECT_THAT(page, HasSubstr(std::string(page_script())));
  EXPECT_THAT(page, HasSubstr(std::string(page_style())));
}

} // namespace
} // namespace palimpsest
