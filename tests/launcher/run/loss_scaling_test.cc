// Covers: launcher/compose/skipped_limit.cc
// fp16 and the scale of its loss, through whole runs.

#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <span>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

/// Eight samples of three features in file order, in steps of four. The target of sample 6 is so far
/// off that its gradient, of an error of 3000, overflows fp16 from a scale of 128 on, while the loss
/// is finite; the others' errors are near 1. `size` multiplies all numbers.
std::string yaml(const TestFolder& folder, const std::string& scaling, float size = 1) {
  SafetensorsWriter writer(
      folder / "data.safetensors",
      {{"inputs", StoredDtype::F32, {8, 3}}, {"targets", StoredDtype::F32, {8, 2}}});
  for (const StoredTensor& tensor : writer.tensors()) {
    std::vector<float> numbers(static_cast<size_t>(tensor.elements()));
    for (size_t index = 0; index < numbers.size(); ++index) {
      numbers[index] = std::sin(static_cast<float>(index));
    }
    if (tensor.name == "targets") {
      numbers[12] = 3000;
    }
    for (float& number : numbers) {
      number *= size;
    }
    writer.write(tensor.name, std::as_bytes(std::span(numbers)));
  }
  writer.commit();
  return fmt::format(
      R"(model: {{family: mlp, input_size: 3, output_size: 2, hidden_size: 5, num_hidden_layers: 2}}
data: {{files: [{}], format: tensors, shuffle: false}}
training: {{steps: 8, global_batch_size: 4, micro_batch_size: 1, threads: 1, reproducible: true}}
optimizer: {{learning_rate: 1e-2, max_grad_norm: 1}}
scheduler: {{name: linear}}
precision: {{compute: fp16, loss_scaling: {}}}
checkpoint: {{save_every: 1}}
)",
      folder / "data.safetensors",
      scaling);
}

std::vector<double> scales(const Finished& run) {
  std::vector<double> found;
  for (const StepRecord& record : run.records.all) {
    found.push_back(record.loss_scale.value_or(0));
  }
  return found;
}

std::vector<bool> skipped(const Finished& run) {
  std::vector<bool> found;
  for (const StepRecord& record : run.records.all) {
    found.push_back(record.skipped);
  }
  return found;
}

// Sample 6 is rank 2's, in every second step: all skip these steps and shrink the scale alike, until
// nothing overflows.
TEST(LossScaling, OneRanksOverflowShrinksTheScaleOfAll) {
  const TestFolder folder;
  const std::string config = yaml(folder, "{initial: 512, growth_interval: 100}");
  const Finished plain = testing::train(config, folder);
  EXPECT_EQ(scales(plain), (std::vector<double>{512, 512, 256, 256, 128, 128, 64, 64}));
  EXPECT_EQ(
      skipped(plain), (std::vector<bool>{false, true, false, true, false, true, false, false}));
  for (const StepRecord& record : plain.records.all) {
    EXPECT_TRUE(std::isfinite(record.loss)) << record.step;
  }
  // The schedule waits where nothing is updated.
  const auto& records = plain.records.all;
  EXPECT_EQ(records[2].learning_rate, records[1].learning_rate);
  EXPECT_LT(records[1].learning_rate, records[0].learning_rate);
  EXPECT_EQ(CheckpointReader(folder / "run/step-00000008").info().updates(), 5);
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(zero);
    const Finished found =
        testing::train_on(4, config, folder, {fmt::format("parallel.zero={}", zero)});
    EXPECT_EQ(scales(found), scales(plain));
    EXPECT_EQ(skipped(found), skipped(plain));
    EXPECT_EQ(found.records.losses(), plain.records.losses());
    EXPECT_EQ(found.parameters, plain.parameters);
  }
}

// A power of two scales exactly: where nothing leaves fp16's range, it changes no bit.
TEST(LossScaling, GradientsAndNormsAreScaledBack) {
  const TestFolder folder;
  std::optional<Finished> first;
  for (const char* scaling : {"{fixed: 64}", "{fixed: 32}"}) {
    Finished found = testing::train(yaml(folder, scaling), folder);
    EXPECT_EQ(skipped(found), std::vector<bool>(8, false));
    if (!first) {
      first = std::move(found);
      continue;
    }
    for (const auto& [name, gradient] : found.gradients) {
      ASSERT_EQ(gradient.size(), first->gradients.at(name).size());
      for (size_t index = 0; index < gradient.size(); ++index) {
        const double wanted = first->gradients.at(name)[index];
        EXPECT_NEAR(gradient[index], wanted, 1e-2 * std::abs(wanted) + 1e-3) << name;
      }
    }
    for (size_t step = 0; step < 8; ++step) {
      const double norm = first->records.norms()[step];
      EXPECT_NEAR(found.records.norms()[step], norm, 1e-2 * norm) << step;
    }
  }
}

TEST(LossScaling, StopsAtTheMinimumOnAllRanks) {
  const TestFolder folder;
  const std::string config = yaml(folder, "{initial: 512, minimum: 256, growth_interval: 100}");
  const std::vector<std::string> texts = testing::errors_on(4, config, folder, {"parallel.zero=2"});
  ASSERT_EQ(texts.size(), 4U);
  EXPECT_THAT(
      texts,
      Each(AllOf(
          ::testing::StartsWith("step 4: "),
          HasSubstr("overflow fp16 at a loss scale of 256"),
          HasSubstr("precision.loss_scaling.minimum"),
          HasSubstr("bf16"))));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/step-00000003"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/step-00000004"));
}

// What a scale that adapts is for is no failure; a fixed one's overflows are.
TEST(LossScaling, SkippedStepsCountWhereNothingAdapts) {
  const TestFolder folder;
  const std::string limit = "training.max_skipped_steps=0";
  const Finished adapts = testing::train(yaml(folder, "{initial: 512}"), folder, {limit});
  EXPECT_EQ(adapts.records.all.size(), 8U);
  EXPECT_THAT(
      [&] { testing::train(yaml(folder, "{fixed: 512}"), folder, {limit}); },
      ThrowsMessage<EnvironmentError>(
          AllOf(::testing::StartsWith("step 2: "), HasSubstr("training.max_skipped_steps"))));
}

TEST(LossScaling, HysteresisLetsOneOverflowPass) {
  const TestFolder folder;
  const Finished found =
      testing::train(yaml(folder, "{initial: 512, growth_interval: 100, hysteresis: 2}"), folder);
  EXPECT_EQ(scales(found), (std::vector<double>{512, 512, 512, 512, 256, 256, 128, 128}));
}

// Stopped with an overflow used up and good steps counted, it goes on as if it had not.
TEST(LossScaling, ItsStateIsSaved) {
  const TestFolder folder;
  const std::string config = yaml(folder, "{initial: 128, growth_interval: 3, hysteresis: 2}");
  const Finished whole = testing::train(config, folder);
  for (int64_t step = 1; step < 8; ++step) {
    SCOPED_TRACE(step);
    testing::train(config, folder);
    for (int64_t later = step + 1; later <= 8; ++later) {
      std::filesystem::remove_all(folder / fmt::format("run/step-{:08}", later));
    }
    std::filesystem::remove_all(folder / "run/model");
    palimpsest::Run run(testing::run_config(config, folder, {}));
    run.prepare();
    testing::Records records;
    run.train({&records});
    ASSERT_EQ(std::ssize(records.all), 8 - step);
    for (const StepRecord& record : records.all) {
      const StepRecord& then = whole.records.all[static_cast<size_t>(record.step - 1)];
      EXPECT_EQ(record.loss_scale, then.loss_scale) << record.step;
      EXPECT_EQ(record.skipped, then.skipped) << record.step;
      EXPECT_EQ(record.loss, then.loss) << record.step;
    }
    std::map<std::string, std::vector<float>> parameters;
    testing::add_parameters(run, parameters);
    EXPECT_EQ(parameters, whole.parameters);
  }
}

// Six good steps from 65,536, where it doubles after each fourth: 131,072 and two more on the way.
// Gone on with from there on two ranks, it doubles after the eighth step as if nothing had been.
TEST(LossScaling, GrowsAcrossAResumeOfRanks) {
  const TestFolder folder;
  // errors so small that nothing overflows
  const std::string config = yaml(folder, "{initial: 65536, growth_interval: 4}", 1e-6F);
  const std::vector<std::string> settings = {"training.steps=10", "parallel.zero=2"};
  const std::vector<double> expected = {
      65536, 65536, 65536, 65536, 131072, 131072, 131072, 131072, 262144, 262144};
  const Finished whole = testing::train_on(2, config, folder, settings);
  EXPECT_EQ(scales(whole), expected);
  EXPECT_EQ(skipped(whole), std::vector<bool>(10, false));
  for (int step = 7; step <= 10; ++step) {
    std::filesystem::remove_all(folder / fmt::format("run/step-{:08}", step));
  }
  const auto saved = CheckpointReader(folder / "run/step-00000006").info().numbers();
  EXPECT_EQ(saved.at("scaler.scale"), 131072);
  EXPECT_EQ(saved.at("scaler.good_steps"), 2);
  const Finished rest = testing::train_on(2, config, folder, settings, /*anew=*/false);
  EXPECT_EQ(scales(rest), std::vector<double>(expected.begin() + 6, expected.end()));
  EXPECT_EQ(rest.parameters, whole.parameters);
}

TEST(LossScaling, IsInTheMetrics) {
  const TestFolder folder;
  const Finished found = testing::train(yaml(folder, "{initial: 512}"), folder);
  std::ifstream file(folder / "run/metrics.jsonl");
  size_t step = 0;
  for (std::string line; std::getline(file, line); ++step) {
    EXPECT_EQ(nlohmann::json::parse(line).at("loss_scale").get<double>(), scales(found)[step]);
  }
  EXPECT_EQ(step, 8U);
}

// An evaluation counts where a step has updated something since the one before: the first that does
// as lower than none, the second not, which uses patience up.
TEST(LossScaling, PatienceCountsNoEvaluationWithoutAnUpdate) {
  const TestFolder folder;
  for (const size_t every : {1U, 2U, 3U}) {
    const Finished run = testing::train(
        yaml(folder, "{initial: 1e12, backoff_factor: 0.001, growth_interval: 100}"),
        folder,
        {"data.validation={fraction: 0.25}",
         "training.steps=40",
         fmt::format("evaluation.every={}", every),
         "evaluation.patience=1",
         "evaluation.min_improvement=1e9"});
    const std::vector<bool> skips = skipped(run);
    ASSERT_LT(skips.size(), 40U);
    EXPECT_EQ(skips[0] && skips[1] && skips[2], true);
    int counted = 0;
    bool updated = false;
    for (size_t step = 1; step <= skips.size(); ++step) {
      EXPECT_LT(counted, 2) << step;
      updated = updated || !skips[step - 1];
      if (step % every == 0) {
        counted += updated ? 1 : 0;
        updated = false;
      }
    }
    EXPECT_EQ(counted, 2) << every;
  }
}

} // namespace
} // namespace palimpsest
