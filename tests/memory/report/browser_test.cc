// Covers: page.cc
//
// The page as a browser shows it: needs a Chromium, and is skipped where there is none.

#include <palimpsest/core/base/files.h>
#include <palimpsest/memory/report/report.h>
#include <palimpsest/memory/report/step_report.h>
#include <palimpsest/tests/support/files/temporary_folder.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

namespace palimpsest::testing {
namespace {

using nlohmann::json;

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(command.c_str(), "r");
  std::array<char, 4096> part;
  for (size_t read = 0; (read = std::fread(part.data(), 1, part.size(), pipe)) > 0;) {
    text.append(part.data(), read);
  }
  pclose(pipe);
  return text;
}

std::optional<std::string> chromium() {
  for (const char* name : {"chromium", "chromium-browser", "google-chrome", "chrome"}) {
    std::string path = output_of(std::string("command -v ") + name);
    if (!path.empty()) {
      path.pop_back();
      return path;
    }
  }
  return std::nullopt;
}

/// Runs before the page's script: nothing may fail in it.
constexpr const char* kBefore = R"(<script>
const failures = [];
addEventListener('error', event => failures.push(event.message));
addEventListener('securitypolicyviolation', event => failures.push('wants ' + event.blockedURI));
</script>)";

/// Runs after it: what the page shows, and what it answers to the pointer on every n-th operation.
constexpr const char* kAfter = R"(<script>
const shown = {failures, figures: {}, title: document.getElementById('title').textContent, hovered: [], found: 0, stack: []};
for (const node of document.querySelectorAll('[data-figure]')) {
  shown.figures[node.dataset.figure] = Number(node.querySelector('data').value);
}
for (const row of document.querySelectorAll('#stack-table tbody tr')) {
  const told = {name: row.querySelector('th').textContent};
  for (const cell of row.querySelectorAll('td')) {
    told[cell.dataset.field] = Number(cell.querySelector('data').value);
  }
  shown.stack.push(told);
}
const plot = document.getElementById('plot');
if (!document.getElementById('step').hidden) {
  document.querySelector('[data-axis=order]').click();
  const count = JSON.parse(document.getElementById('report').textContent).ops.text.length;
  const box = plot.getBoundingClientRect();
  const point = (type, op) => plot.dispatchEvent(new PointerEvent(type, {bubbles: true,
    clientX: box.left + kPlot.left + (op + 0.5) / count * (box.width - kPlot.left - kPlot.right), clientY: box.top + 100}));
  const inspector = document.getElementById('inspector');
  for (let op = 0; op < count; op += Math.ceil(count / 50)) {
    point('pointermove', op);
    shown.hovered.push({op, told: Number(inspector.dataset.op), text: inspector.querySelector('.op').textContent,
      tip: document.querySelector('#tip b').textContent,
      numbers: [...inspector.querySelectorAll('data')].map(node => Number(node.value))});
  }
  point('pointerleave', 0);
  shown.left = Number(inspector.dataset.op);
  const find = document.getElementById('find');
  find.value = 'backward block=1';
  find.dispatchEvent(new Event('input'));
  shown.found = document.querySelectorAll('#found li').length;
}
shown.course = [];
for (const hit of document.querySelectorAll('[data-curve] .hit')) {
  const box = hit.getBoundingClientRect();
  const steps = JSON.parse(document.getElementById('report').textContent).course.step;
  for (const at of steps.keys()) {
    const part = (steps[at] - steps[0]) / (steps[steps.length - 1] - steps[0]);
    hit.dispatchEvent(new PointerEvent('pointermove', {bubbles: true, clientX: box.left + part * box.width, clientY: box.top + 5}));
    const told = {curve: hit.closest('[data-curve]').dataset.curve, at};
    for (const row of document.querySelectorAll('#tip tr')) {
      const value = row.querySelector('data').value;
      told[row.dataset.field] = value === 'null' ? null : Number(value);
    }
    told.cursor = hit.previousSibling.getAttribute('visibility');
    shown.course.push(told);
  }
  hit.dispatchEvent(new PointerEvent('pointerleave', {bubbles: true}));
}
shown.layers = document.querySelectorAll('#layers-plot .hit').length;
shown.planners = document.querySelectorAll('#planners-plot .hit').length;
shown.chosen = [...document.querySelectorAll('#planners-lead data')].map(node => Number(node.value));
shown.icons = [...document.querySelectorAll('#planners-legend svg')].map(node => node.outerHTML);
const over = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
const boxes = (within, what) => [...document.querySelectorAll(`${within} ${what}`)].map(node => [node.textContent, node.getBoundingClientRect()]);
const texts = boxes('#planners-plot', 'text');
shown.covered = texts.flatMap(([text, box], at) => [...boxes('#planners-plot', 'g > :first-child'), ...texts.slice(at + 1)]
  .filter(([, other]) => over(box, other)).map(([other]) => `${text} by ${other}`));
shown.rows = Object.values(Object.groupBy(boxes('#figures', '.figure'), ([, box]) => box.top)).map(row => row.length);
shown.wide = document.documentElement.scrollWidth <= innerWidth;
const told = document.body.appendChild(document.createElement('pre'));
told.id = 'shown';
told.textContent = JSON.stringify(shown).replace(/[<>&]/g, ' ');
</script>)";

class Browser : public ::testing::Test {
 protected:
  void SetUp() override {
    program_ = chromium();
    if (!program_) {
      GTEST_SKIP()
          << "there is no Chromium in PATH; install the package chromium to check the page";
    }
    folder_ = make_temporary_folder();
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }

  /// What the page of the report shows in a window of that width.
  json show(const Report& report, int width = 1280) const {
    std::string page = to_html(report);
    page.insert(page.find("<body>") + 6, kBefore);
    page.insert(page.rfind("</body>"), kAfter);
    write_file_atomically(folder_ / "page.html", page);
    const std::string dom = output_of(
        "timeout 60 '" + *program_ + "' --headless --disable-gpu --disable-dev-shm-usage" +
        (getuid() == 0 ? " --no-sandbox" : "") + " --user-data-dir='" +
        (folder_ / "profile").string() + "' --window-size=" + std::to_string(width) +
        ",900 --dump-dom 'file://" + (folder_ / "page.html").string() + "' 2>/dev/null");
    const std::string open = R"(<pre id="shown">)";
    const size_t begin = dom.rfind(open); // the script that makes it comes before
    if (begin == std::string::npos) {
      ADD_FAILURE() << "the page's script did not come to its end: " << dom.substr(0, 500);
      return {};
    }
    return json::parse(
        dom.substr(begin + open.size(), dom.find("</pre>", begin) - begin - open.size()));
  }

  std::optional<std::string> program_;
  std::filesystem::path folder_;
};

/// A step of the example, with made-up measurements.
Report step_of(const Choice& choice, bool measured) {
  const Case example = make(choice);
  const Plans plans = example.plans();
  Report report{.kind = measured ? "train" : "plan", .title = "run.yaml", .budget_bytes = 4000};
  add_step(
      report, example.job, plans.front(), trace(spread(plans, example.job.mesh()), example.job, 0));
  if (measured) {
    std::vector<TracedOp> ops;
    for (size_t op = 0; op < report.ops.size(); ++op) {
      const auto at = static_cast<double>(op);
      ops.push_back(
          {.begin_s = at, .end_s = at + 0.5, .peak_bytes = 100 + static_cast<int64_t>(op)});
    }
    add_measured(report, ops);
    report.summary.measured_peak_bytes = 100 + static_cast<int64_t>(ops.size()) - 1;
    report.summary.measured_step_s = static_cast<double>(ops.size());
  }
  return report;
}

TEST_F(Browser, ShowsTheReportsNumbersAndFindsTheOperationUnderThePointer) {
  for (const bool measured : {true, false}) {
    Report report = step_of(
        {.model = "long",
         .policy = "sqrt",
         .zero = 3,
         .shard = 2,
         .links = {.communication = 0.01}},
        measured);
    report.planners = {
        {.planner = "none", .peak_bytes = 900, .seconds = 1, .chosen = true},
        {.planner = "every_n", .setting = "n 2", .peak_bytes = 500, .seconds = 1.5}};
    const json shown = show(report, measured ? 700 : 1280);
    EXPECT_EQ(shown["failures"], json::array());
    EXPECT_EQ(shown["title"], "run.yaml");
    EXPECT_TRUE(shown["wide"]) << "the page is wider than its window";
    const ReportSummary& summary = report.summary;
    const json& figures = shown["figures"];
    EXPECT_EQ(figures["peak, predicted"], *summary.predicted_peak_bytes);
    EXPECT_EQ(figures["step, predicted"], *summary.predicted_step_s);
    EXPECT_EQ(figures["recomputed"], *summary.recompute_share);
    EXPECT_EQ(figures["device budget"], 4000);
    EXPECT_EQ(figures.contains("peak, measured"), measured);
    if (measured) {
      EXPECT_EQ(figures["peak, measured"], *summary.measured_peak_bytes);
      EXPECT_EQ(figures["step, measured"], *summary.measured_step_s);
    }
    EXPECT_EQ(shown["layers"], report.layers.size());
    EXPECT_EQ(shown["planners"], 2);

    const json told = json::parse(to_json(report));
    EXPECT_GE(shown["hovered"].size(), 25U);
    for (const json& hovered : shown["hovered"]) {
      const auto op = hovered["op"].get<size_t>();
      EXPECT_EQ(hovered["told"], op);
      EXPECT_EQ(hovered["text"], report.ops[op].text);
      EXPECT_EQ(hovered["tip"], report.ops[op].text);
      int64_t total = 0;
      std::vector<int64_t> parts;
      for (const auto& [category, bytes] : told["ops"]["bytes"].items()) {
        total += bytes[op].get<int64_t>();
        parts.push_back(bytes[op].get<int64_t>());
      }
      const auto numbers = hovered["numbers"].get<std::vector<double>>();
      EXPECT_EQ(numbers.front(), total);
      if (measured) {
        EXPECT_EQ(numbers[1], report.measured[op].bytes);
      }
      for (const int64_t part : parts) {
        EXPECT_THAT(numbers, ::testing::Contains(part));
      }
    }
    const auto& ops = report.ops;
    const auto found = std::ranges::count_if(ops, [](const ReportOp& op) {
      return op.kind == "backward" && op.text.find("block=1") != std::string::npos;
    });
    EXPECT_EQ(shown["found"], std::min<int64_t>(found, 18));
  }
}

// Every curve tells every step's numbers as the data have them; what is not finite is no number.
TEST_F(Browser, ShowsTheCourseOfARun) {
  Report report{.kind = "train", .title = "run.yaml"};
  for (int64_t step = 1; step <= 200; ++step) {
    const auto number = static_cast<double>(step);
    report.course.steps.push_back(
        {.step = step,
         .loss = 4 / number + 1,
         .grad_norm = 100 / number,
         .learning_rate = 1e-5 * number,
         .tokens_per_s = 1000 + number});
  }
  report.course.steps[50].loss.reset();
  report.course.steps[50].skipped = true;
  report.course.evaluations = {
      {.step = 100, .loss = 1.5, .perplexity = 4.48, .best = true},
      {.step = 150, .loss = {}, .perplexity = {}},
      {.step = 200, .loss = 1.625, .perplexity = 5.08}};
  for (const int width : {1280, 700}) {
    const json shown = show(report, width);
    EXPECT_EQ(shown["failures"], json::array());
    EXPECT_TRUE(shown["wide"]) << "the page is wider than its window";
    EXPECT_EQ(shown["figures"]["training loss"], 1.02);
    EXPECT_EQ(shown["figures"]["evaluation loss"], 1.625);
    EXPECT_EQ(shown["figures"]["lowest loss"], 1.5);
    const json course = json::parse(to_json(report))["course"];
    ASSERT_EQ(shown["course"].size(), 4U * 200);
    for (const json& told : shown["course"]) {
      const auto at = told["at"].get<size_t>();
      EXPECT_EQ(told["cursor"], "visible");
      for (const char* field : {"loss", "grad_norm", "learning_rate", "tokens_per_s"}) {
        EXPECT_EQ(told[field], course[field][at]) << told;
      }
      EXPECT_EQ(told.contains("eval_loss"), at == 99 || at == 149 || at == 199);
      EXPECT_EQ(told.contains("eval_perplexity"), at == 99 || at == 199);
      if (at == 99) {
        EXPECT_EQ(told["eval_loss"], 1.5);
        EXPECT_EQ(told["eval_perplexity"], 4.48);
      }
    }
  }
}

TEST_F(Browser, CoversNoTextOfThePlanners) {
  Report report{.kind = "train", .title = "run.yaml"};
  report.summary.predicted_step_s = 0.5;
  for (int number = 0; number < 12; ++number) {
    const int64_t peak = 100 + 5 * number;
    report.planners.insert(
        report.planners.end(),
        {{.planner = "dynamic_programming", .peak_bytes = peak, .seconds = 1.5 / (1 + number)},
         {.planner = "chen_greedy", .peak_bytes = peak + 2, .seconds = 1.6 / (1 + number)}});
  }
  report.planners.push_back({.planner = "none", .peak_bytes = 155, .seconds = 0.125});
  report.planners.push_back(
      {.planner = "auto",
       .setting = "this run",
       .peak_bytes = 125,
       .seconds = 0.25,
       .chosen = true});
  constexpr std::pair<int64_t, int> kBudgetsAndWidths[] = {{101, 800}, {128, 500}, {157, 1280}};
  for (const auto& [budget, width] : kBudgetsAndWidths) {
    report.budget_bytes = budget;
    const json shown = show(report, width);
    EXPECT_EQ(shown["failures"], json::array());
    EXPECT_EQ(shown["covered"], json::array()) << budget << " in " << width;
    EXPECT_EQ(shown["planners"], 26);
    const std::set<std::string> different(shown["icons"].begin(), shown["icons"].end());
    EXPECT_EQ(different.size(), 4U) << "the three planners, and this run";
    // What the run's plan promised, where the chart knows better.
    EXPECT_EQ(shown["chosen"], json({125, 0.25, 0.5}));
  }
  report.summary.predicted_step_s = 0.25;
  EXPECT_EQ(show(report)["chosen"], json({125, 0.25}));
}

TEST_F(Browser, LeavesNoFigureAloneInARow) {
  Report report{.kind = "train", .title = "run.yaml", .budget_bytes = 4000};
  report.summary = {
      .predicted_peak_bytes = 3000,
      .measured_peak_bytes = 3000,
      .peak_rss_bytes = 9000,
      .measured_step_s = 0.5};
  report.course.steps = {{.step = 1, .loss = 2}, {.step = 2, .loss = 1}};
  for (const int width : {1280, 800, 600}) { // seven of them, then five
    report.summary.tokens_per_s = width > 600 ? std::optional(10.0) : std::nullopt;
    report.summary.recompute_share = width > 600 ? std::optional(0.25) : std::nullopt;
    const auto rows = show(report, width)["rows"].get<std::vector<int>>();
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), 0), width > 600 ? 7 : 5);
    EXPECT_THAT(rows, ::testing::Each(::testing::Gt(1))) << width;
  }
}

TEST_F(Browser, ShowsTheRowsOfTheStack) {
  Report report{.kind = "stack", .title = "bench.yaml"};
  report.stack = {
      {.name = "baseline", .peak_device_bytes = 123456789, .predicted_peak_bytes = 124000000},
      {.name = "+ lean tape", .peak_device_bytes = 61728394, .predicted_peak_bytes = 62000000}};
  report.stack[0].percent = 100;
  report.stack[1].percent = 50;
  report.stack[0].step_time_s = 0.123456;
  report.stack[1].loss_difference = 3.25e-8;
  const json shown = show(report);
  EXPECT_EQ(shown["failures"], json::array());
  json rows = json::parse(to_json(report.stack));
  EXPECT_EQ(shown["stack"], rows);
}

} // namespace
} // namespace palimpsest::testing
