#include <palimpsest/core/base/files.h>
#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <cstring>
#include <fstream>
#include <set>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::run;

class TrainVerb : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    path_ = (folder_ / "run.yaml").string();
    std::string text;
    for (int word = 0; word < 100; ++word) {
      text += "the quick brown fox ";
    }
    std::ofstream(folder_ / "corpus.txt") << text;
    std::ofstream(path_) << fmt::format(
        "model: {{preset: tiny}}\n"
        "data: {{files: [{}], sequence_length: 32}}\n"
        "training: {{steps: 4, global_batch_size: 4, micro_batch_size: 2, output: {}, threads: "
        "2}}\n"
        "optimizer: {{learning_rate: 1e-3}}\n",
        (folder_ / "corpus.txt").string(),
        (folder_ / "out").string());
  }
  std::vector<nlohmann::json> metrics(const std::string& output = "out") const {
    std::ifstream file(folder_ / output / "metrics.jsonl");
    std::vector<nlohmann::json> found;
    for (std::string line; std::getline(file, line);) {
      found.push_back(nlohmann::json::parse(line));
    }
    return found;
  }
  std::string path_;
};

TEST_F(TrainVerb, WritesMetricsAndAModelThatContinues) {
  const Outcome outcome = run({"train", path_});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const std::vector<nlohmann::json> first = metrics();
  ASSERT_EQ(first.size(), 4U);
  const std::set<std::string> expected = {
      "step",
      "loss",
      "grad_norm",
      "learning_rate",
      "skipped",
      "tokens",
      "step_time_s",
      "tokens_per_s",
      "peak_device_bytes",
      "peak_rss_bytes",
      "data_wait_s"};
  for (size_t step = 0; step < first.size(); ++step) {
    std::set<std::string> keys;
    for (const auto& [key, value] : first[step].items()) {
      keys.insert(key);
    }
    EXPECT_EQ(keys, expected);
    EXPECT_EQ(first[step]["step"], step + 1);
    EXPECT_EQ(first[step]["tokens"], 4 * 32);
    EXPECT_EQ(first[step]["learning_rate"], 1e-3);
    EXPECT_EQ(first[step]["skipped"], false);
  }
  // The loss of a model that knows nothing of 256 bytes, and it falls.
  EXPECT_NEAR(first[0]["loss"].get<double>(), std::log(256), 0.1);
  EXPECT_LT(first[3]["loss"], first[0]["loss"]);

  const std::string model = (folder_ / "out" / "model").string();
  EXPECT_THAT(outcome.out, HasSubstr("model: " + model));
  std::ofstream(folder_ / "on.yaml") << fmt::format(
      "model: {{path: {}}}\n"
      "data: {{files: [{}], sequence_length: 32}}\n"
      "training: {{steps: 1, global_batch_size: 4, output: {}, threads: 1}}\n"
      "optimizer: {{learning_rate: 1e-3}}\n",
      model,
      (folder_ / "corpus.txt").string(),
      (folder_ / "on").string());
  const Outcome again = run({"train", (folder_ / "on.yaml").string()});
  ASSERT_EQ(again.exit_code, 0) << again.err;
  EXPECT_LT(metrics("on").front()["loss"], first[2]["loss"]);
}

TEST_F(TrainVerb, TheSameCommandGoesOnAndAnotherRunIsRefusedUnlessRestarted) {
  ASSERT_EQ(run({"train", path_, "training.steps=1"}).exit_code, 0);
  const Outcome done = run({"train", path_, "training.steps=1"});
  EXPECT_EQ(done.exit_code, 0);
  EXPECT_THAT(done.out, HasSubstr("\nnothing left to do after 1 step\n"));
  EXPECT_EQ(run({"train", path_, "training.steps=2"}).exit_code, 0);
  EXPECT_EQ(metrics().size(), 2U);
  const Outcome refused = run({"train", path_, "training.steps=2", "training.seed=5"});
  EXPECT_EQ(refused.exit_code, 2);
  EXPECT_THAT(refused.err, HasSubstr("training.seed: 42 -> 5"));
  EXPECT_EQ(
      run({"train", path_, "training.steps=1", "training.seed=5", "training.restart=true"})
          .exit_code,
      0);
  EXPECT_EQ(metrics().size(), 1U);
}

// Its model is not touched; one that is missing, or of an earlier step, is written as it was.
TEST_F(TrainVerb, ARunThatIsDoneKeepsItsModel) {
  namespace fs = std::filesystem;
  ASSERT_EQ(run({"train", path_}).exit_code, 0);
  const fs::path model = folder_ / "out/model";
  const std::string trained = read_file(model / "model.safetensors");
  const auto expect_done = [&](const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"train", path_};
    arguments.insert(arguments.end(), more.begin(), more.end());
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    EXPECT_EQ(metrics().size(), 4U);
    return outcome.out;
  };
  const auto expect_untouched = [&](const std::vector<std::string>& more = {}) {
    const std::string out = expect_done(more);
    EXPECT_THAT(
        out,
        HasSubstr(fmt::format(
            "\nnothing left to do after 4 steps\n{}checkpoint: {}\nmodel: {}\n",
            more.empty() ? ""
                         : "--dump-gradients: no step runs, so there are no gradients to write\n",
            (folder_ / "out/step-00000004").string(),
            model.string())));
    EXPECT_THAT(out, Not(HasSubstr("predicted peak on the device"))); // nothing was measured
  };
  std::ofstream(model / "README.md") << "mine";
  std::ofstream(model / "model.safetensors") << "quantised by hand";
  expect_untouched();
  expect_untouched({"--dump-gradients", (folder_ / "gradients.safetensors").string()});
  EXPECT_FALSE(fs::exists(folder_ / "gradients.safetensors"));
  EXPECT_EQ(read_file(model / "model.safetensors"), "quantised by hand");
  EXPECT_EQ(read_file(model / "README.md"), "mine");
  fs::remove_all(model);
  expect_done();
  EXPECT_EQ(read_file(model / "model.safetensors"), trained);
  std::ofstream(model / "model.safetensors") << "of an earlier step";
  for (const auto& file : fs::directory_iterator(model)) {
    fs::last_write_time(
        file,
        fs::last_write_time(folder_ / "out/step-00000004/manifest.textproto") -
            std::chrono::hours(1));
  }
  expect_done();
  EXPECT_EQ(read_file(model / "model.safetensors"), trained);
}

// What would end a run that goes on ends one that is done, and what would be told is told.
TEST_F(TrainVerb, ARunThatIsDoneChecksAndTellsWhatOneThatGoesOnDoes) {
  ASSERT_EQ(run({"train", path_}).exit_code, 0);
  const Outcome changed = run({"train", path_, "optimizer.learning_rate=0.5", "--allow-change"});
  EXPECT_EQ(changed.exit_code, 0) << changed.err;
  EXPECT_THAT(changed.out, HasSubstr("optimizer.learning_rate"));
  EXPECT_THAT(changed.out, HasSubstr("nothing left to do after 4 steps"));
  const Outcome batch = run({"train", path_, "training.global_batch_size=2", "--allow-change"});
  EXPECT_EQ(batch.exit_code, 2);
  EXPECT_THAT(batch.err, HasSubstr("training.global_batch_size"));
}

TEST_F(TrainVerb, AReportOfARunThatIsDoneShowsItsPlanAndCourse) {
  ASSERT_EQ(run({"train", path_}).exit_code, 0);
  const std::filesystem::path page = folder_ / "report.json";
  const Outcome done = run({"train", path_, "--json", page.string()});
  EXPECT_EQ(done.exit_code, 0) << done.err;
  EXPECT_THAT(read_file(page), HasSubstr("loss"));
}

// Out of memory, for instance: what it left is of no value, and the next start goes on.
TEST_F(TrainVerb, ARunThatEndedBeforeItsFirstStepStartsAgain) {
  std::filesystem::create_directories(folder_ / "out");
  std::ofstream(folder_ / "out/run.json") << R"({"run_id": "a"})";
  std::ofstream(folder_ / "out/metrics.jsonl").flush();
  const Outcome outcome = run({"train", path_});
  EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(metrics().size(), 4U);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/previous-1"));
}

// The gradients are those that the first step's norm is of.
TEST_F(TrainVerb, DumpsTheFirstStepsGradients) {
  const std::string file = (folder_ / "gradients.safetensors").string();
  const Outcome outcome =
      run({"train", path_, "--dump-gradients", file, "optimizer.max_grad_norm=1e-3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  const SafetensorsFile gradients(file);
  double squares = 0;
  for (const StoredTensor& tensor : gradients.tensors()) {
    std::vector<float> values(static_cast<size_t>(tensor.elements()));
    std::memcpy(values.data(), gradients.bytes(tensor).data(), gradients.bytes(tensor).size());
    for (const float value : values) {
      squares += static_cast<double>(value) * value;
    }
  }
  const double norm = metrics().front()["grad_norm"];
  EXPECT_NEAR(std::sqrt(squares), norm, 1e-6 * norm);
  EXPECT_EQ(gradients.at("model.norm.weight").shape, (std::vector<int64_t>{64}));
}

// The first update overflows, so that every step after it is skipped: what was good stays.
TEST_F(TrainVerb, AModelThatIsNotFiniteTakesNoOtherOnesPlace) {
  ASSERT_EQ(run({"train", path_, "training.steps=1"}).exit_code, 0);
  const std::filesystem::path model = folder_ / "out/model/model.safetensors";
  const std::string before = read_file(model);
  const Outcome outcome =
      run({"train", path_, "--allow-change", "optimizer.learning_rate=1e39", "training.steps=6"});
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_THAT(outcome.err, HasSubstr("no model is written, since model."));
  EXPECT_THAT(outcome.err, HasSubstr("holds NaN or infinity in F32; earlier models and"));
  EXPECT_THAT(outcome.out, HasSubstr("4 of 5 steps skipped: 4 with a loss or gradient that"));
  EXPECT_THAT(outcome.out, HasSubstr("step 6 was not saved: "));
  EXPECT_EQ(read_file(model), before);
  EXPECT_TRUE(std::filesystem::exists(folder_ / "out/step-00000001"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out/step-00000006"));
  EXPECT_EQ(metrics().size(), 6U);
}

TEST_F(TrainVerb, QuietPrintsOnlyTheSummary) {
  const Outcome loud = run({"train", path_});
  EXPECT_THAT(loud.out, HasSubstr("step 1/4"));
  EXPECT_THAT(loud.out, HasSubstr("predicted peak on the device"));
  const Outcome quiet = run({"train", path_, "logging.quiet=true", "training.restart=true"});
  EXPECT_EQ(quiet.exit_code, 0);
  EXPECT_THAT(quiet.out, Not(HasSubstr("step 1/4")));
  EXPECT_THAT(quiet.out, Not(HasSubstr("predicted peak on the device")));
  EXPECT_THAT(quiet.out, HasSubstr("4 steps in "));
  const Outcome flag = run({"train", path_, "--quiet", "training.restart=true"});
  EXPECT_EQ(flag.exit_code, 0);
  EXPECT_THAT(flag.out, Not(HasSubstr("step 1/4")));
  EXPECT_THAT(flag.out, HasSubstr("4 steps in "));
}

TEST_F(TrainVerb, LogEveryIsTheKeyOfThatName) {
  const Outcome outcome = run({"train", path_, "--log-every", "3"});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  for (const char* step : {"step 1/4", "step 3/4", "step 4/4"}) {
    EXPECT_THAT(outcome.out, HasSubstr(step));
  }
  EXPECT_THAT(outcome.out, Not(HasSubstr("step 2/4")));
  EXPECT_EQ(metrics().size(), 4U); // all the same
  const Outcome zero = run({"train", path_, "--log-every", "0"});
  EXPECT_EQ(zero.exit_code, 2);
  EXPECT_THAT(zero.err, HasSubstr("--log-every: '0' is not allowed; give a whole number in"));
  const Outcome both = run({"train", path_, "--log-every", "3", "logging.every=2"});
  EXPECT_EQ(both.exit_code, 2);
  EXPECT_THAT(both.err, HasSubstr("logging.every=3: overridden twice"));
}

TEST_F(TrainVerb, ErrorsEndWithTheirExitCode) {
  EXPECT_EQ(run({"train"}).exit_code, 2);
  EXPECT_EQ(run({"train", "/nonexistent/run.yaml"}).exit_code, 2);
  EXPECT_EQ(run({"train", path_, "data.files=[/nonexistent/a.txt]"}).exit_code, 2);
  EXPECT_EQ(run({"train", path_, "model.hidden_size=63"}).exit_code, 2);
  std::ofstream(folder_ / "file") << "in the way";
  const Outcome outcome =
      run({"train", path_, "training.output=" + (folder_ / "file" / "out").string()});
  EXPECT_THAT(outcome.err, HasSubstr((folder_ / "file").string()));
  EXPECT_NE(outcome.exit_code, 0);
  const Outcome full = run({"train", path_, "--dump-gradients", "/dev/full"});
  EXPECT_EQ(full.exit_code, 1);
  EXPECT_THAT(full.err, HasSubstr("No space left on device"));
}

} // namespace
} // namespace palimpsest
