// Covers: launcher/compose/run_logs.cc
// Covers: launcher/compose/model_flops.cc
// Covers: launcher/compose/utilization.cc
// What a run writes of its steps, as TensorBoard and people's scripts read it.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/compose/utilization.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>
#include <palimpsest/tests/support/python/python.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <sys/wait.h>

#include <cstdlib>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

/// 10 samples in batches of 4, 4 and 2, so that epochs end with a shorter step.
std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 10 * 13, 7);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256}}
data: {{files: [{}], format: text, sequence_length: 12}}
training: {{steps: 5, global_batch_size: 4, micro_batch_size: 2, threads: 1}}
optimizer: {{learning_rate: 1e-2}}
checkpoint: {{save_every: 2}}
)",
      folder / "text.txt");
}

std::vector<nlohmann::json> metrics(const TestFolder& folder) {
  std::ifstream file(folder / "run/metrics.jsonl");
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(file, line);) {
    found.push_back(nlohmann::json::parse(line));
  }
  return found;
}

size_t files_in(const std::filesystem::path& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

/// Trains in the folder, going on with what it holds.
void train(const TestFolder& folder, const std::vector<std::string>& overrides) {
  Run run(testing::run_config(yaml(folder), folder, overrides));
  run.prepare();
  run.train({});
}

/// Trains five steps, and then goes on from step 2 to step 6 as if the first run had been killed.
void train_resume(const TestFolder& folder, const std::vector<std::string>& overrides) {
  train(folder, overrides);
  std::filesystem::remove_all(folder / "run/step-00000005");
  std::filesystem::remove_all(folder / "run/step-00000004");
  std::vector<std::string> longer = overrides;
  longer.emplace_back("training.steps=6");
  train(folder, longer);
}

/// Operations of a row of the model above: forward and backward, that of a product being twice its
/// forward; scores of each position with those up to it.
constexpr double row_flops() {
  constexpr double kHidden = 24, kKeys = 12, kInner = 56, kWords = 256, kLength = 12;
  const double attention = 2 * kHidden * (2 * kHidden + 2 * kKeys);
  const double mlp = 2 * 3 * kHidden * kInner;
  const double scores = 4 * kHidden * kLength * (kLength + 1) / 2;
  return 3 * (2 * (kLength * (attention + mlp) + scores) + kLength * 2 * kHidden * kWords);
}

TEST(RunLogs, TensorBoardReadsTheMetricsOfARunThatWentOn) {
  const std::filesystem::path tests = std::filesystem::path(PALIMPSEST_TEST_DATA).parent_path();
  const PeerPython python = peer_python("tensorboard");
  if (!python) {
    GTEST_SKIP() << python.reason;
  }
  const TestFolder folder;
  std::ofstream(folder / "small.yaml")
      << "{flops: {fp32: 5e9, bf16: 1e15}, memory: 1GB, bandwidth: 1e9, network: {bandwidth: 1e9}}";
  train_resume(folder, {"logging.hardware=" + (folder / "small.yaml")});
  EXPECT_EQ(files_in(folder / "run/tensorboard"), 2U);
  const int status = std::system(fmt::format(
                                     "{} {} {} >{} 2>{}",
                                     python.interpreter,
                                     (tests / "launcher/run/tensorboard_scalars.py").string(),
                                     folder / "run/tensorboard",
                                     folder / "scalars.json",
                                     folder / "log")
                                     .c_str());
  ASSERT_EQ(status, 0) << read_file(folder / "log");
  const auto scalars = nlohmann::json::parse(read_file(folder / "scalars.json"));
  const std::vector<nlohmann::json> lines = metrics(folder);
  ASSERT_EQ(lines.size(), 6U);
  ASSERT_EQ(scalars.size(), 6U) << scalars;
  for (size_t index = 0; index < lines.size(); ++index) {
    const nlohmann::json& line = lines[index];
    for (const char* name :
         {"loss", "grad_norm", "learning_rate", "tokens_per_s", "peak_device_bytes"}) {
      const nlohmann::json& points = scalars.at(std::string("train/") + name);
      ASSERT_EQ(points.size(), lines.size()) << name;
      EXPECT_EQ(points[index][0], line["step"]) << name;
      EXPECT_EQ(points[index][1].get<float>(), line[name].get<float>()) << name;
    }
    const double rows = index % 3 == 2 ? 2 : 4;
    const double mfu = rows * row_flops() / (line["step_time_s"].get<double>() * 5e9);
    EXPECT_NEAR(scalars["train/mfu"][index][1].get<double>(), mfu, 1e-6 * mfu) << index;
  }
}

TEST(RunLogs, OnlyTheRankThatLeadsWrites) {
  const TestFolder folder;
  testing::train_on(2, yaml(folder), folder);
  EXPECT_EQ(files_in(folder / "run/tensorboard"), 1U);
  EXPECT_EQ(metrics(folder).size(), 5U);
}

TEST(RunLogs, EventsAreLeftOutWhereNobodyWantsThem) {
  const TestFolder folder;
  train_resume(folder, {"logging.tensorboard=false"});
  EXPECT_FALSE(std::filesystem::exists(folder / "run/tensorboard"));
  EXPECT_EQ(metrics(folder).size(), 6U);
}

TEST(RunLogs, ANewRunSetsTheEventsOfTheOldOneAside) {
  const TestFolder folder;
  train(folder, {});
  train(folder, {"training.restart=true"});
  EXPECT_EQ(files_in(folder / "run/tensorboard"), 1U);
  EXPECT_EQ(files_in(folder / "run/previous-1/tensorboard"), 1U);
}

// The first layer is frozen with all before it: it has no backward. Of the second, the MLP is frozen:
// its backward makes the input's gradient alone.
TEST(Utilization, CountsNoGradientThatIsNotMade) {
  const TestFolder folder;
  palimpsest::Run run(testing::run_config(
      yaml(folder),
      folder,
      {"logging.hardware=a100-80", R"(training.freeze=[embed, "layers\\.0\\.", mlp])"}));
  constexpr double kHidden = 24, kKeys = 12, kInner = 56, kWords = 256, kLength = 12;
  const double attention =
      kLength * 2 * kHidden * (2 * kHidden + 2 * kKeys) + 4 * kHidden * kLength * (kLength + 1) / 2;
  const double mlp = kLength * 3 * 2 * kHidden * kInner;
  const double head = kLength * 2 * kHidden * kWords;
  const double row = attention + mlp + 3 * attention + 2 * mlp + 3 * head;
  EXPECT_DOUBLE_EQ(
      model_utilization(run)({.step = 1, .step_time_s = 2}).value(), 4 * row / (2 * 19.5e12));
}

TEST(Utilization, IsUnknownWithoutAPeakAndOfTheComputeTypesPeakWithOne) {
  const TestFolder folder;
  const auto mfu = [&](const std::vector<std::string>& overrides) {
    palimpsest::Run run(testing::run_config(yaml(folder), folder, overrides));
    return model_utilization(run)({.step = 1, .step_time_s = 2});
  };
  EXPECT_FALSE(mfu({}).has_value());
  // The A100's datasheet: 19.5 and 312 TFLOP/s.
  EXPECT_DOUBLE_EQ(mfu({"logging.hardware=a100-80"}).value(), 4 * row_flops() / (2 * 19.5e12));
  EXPECT_DOUBLE_EQ(
      mfu({"logging.hardware=a100-80", "precision.compute=bf16"}).value(),
      4 * row_flops() / (2 * 312e12));
  EXPECT_THAT(
      [&] { mfu({"logging.hardware=a100"}); },
      ThrowsMessage<UserError>(AllOf(
          HasSubstr("logging.hardware: 'a100' is neither a file nor one of"),
          HasSubstr("a100-80"))));
}

} // namespace
} // namespace palimpsest
