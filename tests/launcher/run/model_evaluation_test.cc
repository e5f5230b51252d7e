// Covers: launcher/compose/model_evaluation.cc
// Covers: launcher/compose/saved_values.cc
// The loss of models that are not trained: golden ones as their reference computed it, and what runs
// have left.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/compose/model_evaluation.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <mutex>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

class Last final : public Observer {
 public:
  void evaluation_end(const EvaluationRecord& given) override {
    record = given;
  }
  EvaluationRecord record;
};

std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 21 * 13, 7);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256, dropout: 0.1}}
data: {{files: [{}], format: text, sequence_length: 12, validation: {{fraction: 0.2}}}}
training: {{steps: 3, global_batch_size: 6, micro_batch_size: 2, threads: 1}}
optimizer: {{learning_rate: 1e-2}}
)",
      folder / "text.txt");
}

/// Trains, and returns its own last evaluation.
EvaluationRecord train(const TestFolder& folder, const std::vector<std::string>& overrides = {}) {
  palimpsest::Run run(testing::run_config(yaml(folder), folder, overrides));
  run.prepare();
  Last last;
  run.train({&last});
  run.write_model();
  return last.record;
}

EvaluationRecord evaluate(
    const RunConfig& config,
    const EvaluationRequest& request,
    int count = 1) {
  EvaluationRecord found;
  std::mutex mutex;
  testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = count, .threads = 1});
    ModelEvaluation evaluation(config, request, ranks);
    EXPECT_EQ(evaluation.memory().usage(Category::kOptimizer).peak, 0);
    evaluation.memory().reset_peaks();
    const EvaluationRecord record = evaluation.measure();
    EXPECT_EQ(evaluation.memory().usage(Category::kGradients).peak, 0);
    const int64_t promised = evaluation.report().peak(TierId::kDevice);
    EXPECT_LE(evaluation.memory().total().peak, promised + promised / 50);
    const std::lock_guard lock(mutex);
    if (ranks.leads()) {
      found = record;
    }
  });
  return found;
}

TEST(ModelEvaluation, GivesTheGoldenModelsTheirReferencesLoss) {
  const std::filesystem::path models = std::filesystem::path(PALIMPSEST_TEST_DATA) / "models";
  int tried = 0;
  for (const auto& entry : std::filesystem::directory_iterator(models)) {
    if (!std::filesystem::exists(entry.path() / "golden.json")) {
      continue;
    }
    SCOPED_TRACE(entry.path().string());
    const RunConfig config = load_config_text(
        fmt::format(
            "{{model: {{path: {0}}}, data: {{files: [{0}/golden.safetensors], format: tensors}}, "
            "training: {{micro_batch_size: 1, threads: 1}}, optimizer: {{learning_rate: 0}}}}",
            entry.path().string()),
        "eval.yaml");
    const std::string file = (entry.path() / "golden.safetensors").string();
    const auto golden = testing::floats(file);
    const EvaluationRecord found =
        evaluate(config, {.files = {{.path = file, .format = "tensors"}}}, 1 + tried % 2);
    const double expected = golden.at("loss").front();
    EXPECT_NEAR(found.loss, expected, 2e-6 * expected);
    EXPECT_DOUBLE_EQ(found.perplexity.value(), std::exp(found.loss));
    ++tried;
  }
  EXPECT_GE(tried, 9);
}

// A folder of fp32 weights and the checkpoint's masters are the values of the run's last evaluation.
TEST(ModelEvaluation, OfATrainedModelOrCheckpointIsTheRunsOwnLastOne) {
  const TestFolder folder;
  const EvaluationRecord own = train(folder);
  RunConfig config = testing::run_config(yaml(folder), folder, {});
  const EvaluationRequest checkpoint{.checkpoint = folder / "run/step-00000003"};
  EXPECT_EQ(evaluate(config, checkpoint).loss, own.loss);
  EXPECT_EQ(evaluate(config, checkpoint).step, 3);
  EXPECT_EQ(evaluate(config, checkpoint).targets, own.targets);
  for (const int zero : {0, 3}) {
    config.mutable_parallel()->set_zero(zero);
    EXPECT_NEAR(evaluate(config, checkpoint, 2).loss, own.loss, 1e-5 * own.loss);
  }
  config.mutable_model()->Clear();
  config.mutable_model()->set_path(folder / "run/model");
  EXPECT_EQ(evaluate(config, {}).loss, own.loss);
}

TEST(ModelEvaluation, InBf16HoldsNoMastersAndRoundsAsTheRunDid) {
  const TestFolder folder;
  const EvaluationRecord own = train(folder, {"precision.compute=bf16"});
  const RunConfig config = testing::run_config(yaml(folder), folder, {"precision.compute=bf16"});
  EXPECT_EQ(evaluate(config, {.checkpoint = folder / "run/step-00000003"}).loss, own.loss);
}

TEST(ModelEvaluation, RefusesWhatItCannotEvaluate) {
  const TestFolder folder;
  train(folder);
  const auto refuse = [&](const std::vector<std::string>& overrides,
                          const EvaluationRequest& given) {
    return [&folder, overrides, given] {
      evaluate(testing::run_config(yaml(folder), folder, overrides), given);
    };
  };
  EXPECT_THAT(
      refuse({"data.validation=null"}, {}),
      ThrowsMessage<UserError>(AllOf(HasSubstr("nothing is held out"), HasSubstr("--data"))));
  EXPECT_THAT(
      refuse({"model.hidden_size=32"}, {.checkpoint = folder / "run/step-00000003"}),
      ThrowsMessage<UserError>(
          AllOf(HasSubstr("is of another model"), HasSubstr("model.norm.weight [32] is missing"))));
  EXPECT_THAT(
      refuse({"memory.device_budget=100KiB"}, {.checkpoint = folder / "run/step-00000003"}),
      ThrowsMessage<UserError>(
          AllOf(HasSubstr("memory.device_budget"), HasSubstr("not enough for an evaluation"))));
}

} // namespace
} // namespace palimpsest
