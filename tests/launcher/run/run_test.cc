// Covers: launcher/compose/run.cc launcher/compose/run_checkpoints.cc
// What a run promises around its steps: its folder, its batches, its rates, its states.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/plan/closed_forms.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <span>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

/// A small decoder on `samples` rows of eight ids, of which row r has r % 8 targets more than one.
std::string yaml(const TestFolder& folder, int64_t samples) {
  constexpr int64_t kTokens = 8;
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  for (int64_t row = 0; row < samples; ++row) {
    for (int64_t token = 0; token < kTokens; ++token) {
      ids.push_back(static_cast<int32_t>((row * row + 5 * token) % 67));
      labels.push_back(token <= row % kTokens + 1 ? ids.back() : -100);
    }
  }
  std::ofstream(folder / "ids.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("input_ids", "I32", {samples, kTokens}, ids),
       test_tensor("labels", "I32", {samples, kTokens}, labels)});
  return fmt::format(
      "model: {{family: llama, vocab_size: 67, hidden_size: 24, num_hidden_layers: 2, "
      "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 56}}\n"
      "data: {{files: [{}], shuffle: false}}\n"
      "training: {{threads: 2}}\n"
      "optimizer: {{learning_rate: 1e-3}}\n",
      folder / "ids.safetensors");
}

int64_t lines(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  return std::ranges::count(text, '\n');
}

TEST(Run, GoesOnWithTheFoldersRunAndRefusesAnother) {
  const TestFolder folder;
  const std::string config = yaml(folder, 4);
  const auto train = [&](const std::vector<std::string>& more) {
    std::vector<std::string> overrides = {"training.output=" + (folder / "run")};
    overrides.insert(overrides.end(), more.begin(), more.end());
    palimpsest::Run run(load_config_text(config, "test.yaml", overrides));
    run.prepare();
    run.train({});
  };
  const std::filesystem::path metrics = folder / "run/metrics.jsonl";
  train({"training.steps=2"});
  EXPECT_EQ(lines(metrics), 2);
  train({"training.steps=3"}); // the same run, longer
  EXPECT_EQ(lines(metrics), 3);
  const std::string before = read_file(metrics);
  EXPECT_THAT(
      [&] {
        train({"training.steps=3", "training.seed=7"});
      },
      ThrowsMessage<UserError>(AllOf(
          HasSubstr("training.seed"), HasSubstr(folder / "run"), HasSubstr("training.output"))));
  EXPECT_EQ(read_file(metrics), before); // a refusal changes nothing
  std::filesystem::remove_all(folder / "run/step-00000002");
  std::filesystem::remove_all(folder / "run/step-00000003");
  EXPECT_THAT( // what it was cannot be gone on with
      [&] { train({"training.steps=3"}); },
      ThrowsMessage<UserError>(
          AllOf(HasSubstr("training.output: "), HasSubstr(folder / "run"), HasSubstr("restart"))));
  train({"training.steps=2", "training.restart=true"});
  EXPECT_EQ(lines(metrics), 2);
}

TEST(Run, KnowsItsPlanBeforeItWritesAnything) {
  const TestFolder folder;
  palimpsest::Run run(
      load_config_text(yaml(folder, 4), "test.yaml", {"training.output=" + (folder / "run")}));
  EXPECT_GT(run.full_report().peak(TierId::kDevice), 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  EXPECT_EQ(run.memory().usage(Category::kParameters).live, 0);
}

/// Largest difference of losses, norms, first gradients, each relative to the other run's.
void expect_close(const Finished& found, const Finished& expected, const std::string& what) {
  ASSERT_EQ(found.records.all.size(), expected.records.all.size()) << what;
  for (size_t step = 0; step < expected.records.all.size(); ++step) {
    const double loss = expected.records.losses()[step];
    const double norm = expected.records.norms()[step];
    EXPECT_NEAR(found.records.losses()[step], loss, 1e-5 * loss) << what << step;
    EXPECT_NEAR(found.records.norms()[step], norm, 1e-5 * norm) << what << step;
  }
  for (const auto& [name, gradient] : expected.gradients) {
    double largest = 0;
    for (const float element : gradient) {
      largest = std::max<double>(largest, std::abs(element));
    }
    for (size_t index = 0; index < gradient.size(); ++index) {
      EXPECT_NEAR(found.gradients.at(name)[index], gradient[index], 1e-5 * largest) << what << name;
    }
  }
}

// Rows have different numbers of targets, so a mean of micro-batches' means would be another loss.
// The last step of an epoch has what is left: of eleven samples by four, three, as micro-batches of
// 2 and 1.
TEST(Run, MicroBatchesGiveTheWholeBatchsStepTheIncompleteOneToo) {
  for (const auto& [samples, batch, micro] :
       {std::tuple(8, 8, 2), std::tuple(11, 4, 2), std::tuple(11, 4, 1), std::tuple(100, 8, 4)}) {
    const TestFolder folder;
    const std::string config = yaml(folder, samples);
    const std::string size = fmt::format("training.global_batch_size={}", batch);
    const std::string cut = fmt::format("training.micro_batch_size={}", micro);
    const std::string whole = fmt::format("training.micro_batch_size={}", batch);
    const Finished found = testing::train(config, folder, {size, cut});
    const Finished expected = testing::train(config, folder, {size, whole});
    EXPECT_EQ(found.records.all.size(), static_cast<size_t>((samples + batch - 1) / batch));
    EXPECT_EQ(found.run->micro_batches(), batch / micro);
    EXPECT_EQ(
        found.records.all.back().tokens, 8 * (samples % batch == 0 ? batch : samples % batch));
    expect_close(found, expected, fmt::format("{} by {} by {}: ", samples, batch, micro));
  }
}

TEST(Run, AMicroBatchThatDoesNotDivideTheBatchIsRefused) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] {
        testing::train(
            yaml(folder, 8),
            folder,
            {"training.global_batch_size=8", "training.micro_batch_size=3"});
      },
      ThrowsMessage<UserError>(
          AllOf(HasSubstr("training.global_batch_size: 8"), HasSubstr("3 (micro_batch_size)"))));
}

TEST(Run, TheLastIncompleteBatchIsLeftOutOnRequest) {
  const TestFolder folder;
  const Finished finished = testing::train(
      yaml(folder, 11), folder, {"training.global_batch_size=4", "data.drop_last=true"});
  std::vector<int64_t> tokens;
  for (const StepRecord& record : finished.records.all) {
    tokens.push_back(record.tokens);
  }
  EXPECT_THAT(tokens, ElementsAre(32, 32));
}

// Peak 1e-3 after a warm-up of 10 steps: 5e-4 after five updates, the peak after ten, and the floor
// of a cosine after the last, however many micro-batches a step has, on however many ranks.
TEST(Run, TheRateFollowsOptimizerStepsForAnyAccumulationAndRanks) {
  const TestFolder folder;
  const std::string config = yaml(folder, 8);
  std::vector<std::vector<double>> columns;
  for (const int ranks : {1, 2}) {
    for (const char* accumulation : {"1", "4"}) {
      const Finished finished = testing::train_on(
          ranks,
          config,
          folder,
          {std::string("training.gradient_accumulation_steps=") + accumulation,
           "training.micro_batch_size=1",
           "training.steps=20",
           "scheduler={name: cosine, warmup_steps: 10, min_ratio: 0.1}"});
      columns.emplace_back();
      for (const StepRecord& record : finished.records.all) {
        columns.back().push_back(record.learning_rate);
      }
      EXPECT_EQ(columns.back(), columns.front()) << ranks << " ranks, " << accumulation;
    }
  }
  ASSERT_EQ(columns[0].size(), 20U);
  EXPECT_EQ(columns[0][0], 0);
  EXPECT_DOUBLE_EQ(columns[0][5], 5e-4);
  EXPECT_DOUBLE_EQ(columns[0][10], 1e-3);
  EXPECT_DOUBLE_EQ(columns[0][15], 1e-3 * 0.55); // half way down to the floor of 0.1
}

// A narrow parameter has an fp32 master and two fp32 moments, unless told otherwise.
TEST(Run, StatesHaveTheirBytesPerParameter) {
  for (const auto& [precision, parameter, gradient, optimizer] :
       {std::tuple("fp32", 4, 4, 8),
        std::tuple("bf16", 2, 4, 12),
        std::tuple("fp16", 2, 4, 12),
        std::tuple("{compute: fp32, moments: bf16, gradients: bf16}", 4, 2, 4),
        std::tuple("{compute: bf16, moments: bf16}", 2, 4, 8),
        std::tuple("{compute: bf16, master: none}", 2, 4, 8),
        std::tuple("{compute: bf16, master: none, moments: bf16, gradients: bf16}", 2, 2, 4)}) {
    SCOPED_TRACE(precision);
    const TestFolder folder;
    const Finished finished =
        testing::train(yaml(folder, 4), folder, {std::string("precision=") + precision});
    const MemoryContext& memory = finished.run->memory();
    const int64_t count = finished.run->model().chain().parameter_count();
    EXPECT_EQ(count, 2 * 5808 + 2 * 1608 + 24); // two layers, embedding and head, the last norm
    EXPECT_EQ(memory.usage(Category::kParameters).live, parameter * count);
    EXPECT_EQ(memory.usage(Category::kOptimizer).live, optimizer * count);
    EXPECT_EQ(memory.usage(Category::kGradients).peak, gradient * count);
    EXPECT_EQ(memory.usage(Category::kGradients).live, 0);
    StateBytes planned; // the same by the plan
    for (const UnitCost& unit : finished.run->full_plan().job.model().units) {
      planned.parameters += static_cast<double>(unit.parameter_bytes);
      planned.gradients += static_cast<double>(unit.gradient_bytes);
      planned.optimizer += static_cast<double>(unit.state_bytes);
    }
    EXPECT_EQ(planned.parameters, parameter * count);
    EXPECT_EQ(planned.gradients, gradient * count);
    EXPECT_EQ(planned.optimizer, optimizer * count);
  }
}

TEST(Run, MetricsAreTheObserversRecords) {
  const TestFolder folder;
  const Finished finished = testing::train(yaml(folder, 11), folder, {"training.epochs=2"});
  std::ifstream file(finished.run->output() / "metrics.jsonl");
  size_t step = 0;
  for (std::string line; std::getline(file, line); ++step) {
    const auto json = nlohmann::json::parse(line);
    ASSERT_LT(step, finished.records.all.size());
    EXPECT_EQ(json["step"], step + 1);
    EXPECT_EQ(json["loss"].get<double>(), finished.records.losses()[step]);
    EXPECT_EQ(json["grad_norm"].get<double>(), finished.records.norms()[step]);
  }
  EXPECT_EQ(step, finished.records.all.size());
}

TEST(Run, ParameterGroupsReachTheOptimizer) {
  const TestFolder folder;
  const Finished finished = testing::train(
      yaml(folder, 4),
      folder,
      {"optimizer.groups=[{match: \"norm\", learning_rate_multiplier: 0}]", "training.steps=2"});
  for (const auto& [name, values] : finished.parameters) {
    const bool norm = name.find("norm") != std::string::npos;
    const bool all_one = std::ranges::all_of(values, [](float value) { return value == 1; });
    EXPECT_EQ(all_one, norm) << name; // norms begin at one, and stay
  }
}

TEST(Run, ReportsTheNormThatIsAskedFor) {
  const TestFolder folder;
  const std::string config = yaml(folder, 4);
  for (const char* type : {"1", "2", "inf"}) {
    const Finished finished = testing::train(
        config, folder, {std::string("optimizer.norm_type=") + type, "training.steps=1"});
    double sum = 0;
    double squares = 0;
    double largest = 0;
    for (const auto& [name, gradient] : finished.gradients) {
      for (const float value : gradient) {
        sum += std::abs(value);
        squares += static_cast<double>(value) * value;
        largest = std::max<double>(largest, std::abs(value));
      }
    }
    const std::string name = type;
    const double expected = name == "1" ? sum : name == "2" ? std::sqrt(squares) : largest;
    EXPECT_NEAR(finished.records.norms().front(), expected, 1e-6 * expected) << type;
  }
}

// Stored halves come in exactly and go out as they were.
TEST(Run, KeepsAnF16FolderByteForByte) {
  const TestFolder folder;
  DecoderConfig decoder{.vocab_size = 67, .hidden_size = 24, .intermediate_size = 56};
  decoder.num_hidden_layers = 2;
  decoder.num_attention_heads = 4;
  decoder.num_key_value_heads = 2;
  decoder.dtype = StoredDtype::F16;
  decoder = complete_decoder_config(decoder, "test");
  const std::string source = folder / "f16";
  write_hf_folder(
      source,
      new_layout(write_decoder_config(decoder), decoder_tensors(decoder)),
      [](const StoredTensor&, std::span<std::byte> bytes) {
        for (size_t index = 0; index + 1 < bytes.size(); index += 2) {
          const auto half = static_cast<uint16_t>(0x2400 + index * 7 % 2048); // 2^-6 to 2^-4
          std::memcpy(bytes.data() + index, &half, 2);
        }
      });
  std::string config = yaml(folder, 4);
  config.replace(0, config.find('\n'), "model: {path: " + source + "}");
  const Finished finished =
      testing::train(config, folder, {"optimizer.learning_rate=0", "training.steps=1"});
  EXPECT_EQ(
      read_file(finished.run->output() / "model" / "model.safetensors"),
      read_file(source + "/model.safetensors"));
}

std::map<std::string, std::string> texts_in(const std::filesystem::path& folder) {
  std::map<std::string, std::string> texts;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    texts.emplace(entry.path().filename().string(), read_file(entry.path()));
  }
  return texts;
}

// A checkpoint holds all that going on needs, tokenizer included.
TEST(Run, GoesOnWithoutTheFolderThatItsModelCameFrom) {
  const TestFolder folder;
  const std::string base = folder / "base";
  std::filesystem::copy(PALIMPSEST_TEST_DATA "/models/llama-tied", base);
  std::ofstream(base + "/tokenizer.json") << "{}";
  std::string config = yaml(folder, 8);
  config.replace(0, config.find('\n'), "model: {path: " + base + "}");
  const Finished whole = testing::train(config, folder, {"training.steps=4"});
  const auto model = texts_in(whole.run->output() / "model");
  EXPECT_TRUE(model.contains("tokenizer.json"));
  testing::train(config, folder, {"training.steps=2"});
  std::filesystem::remove_all(base);
  {
    palimpsest::Run run(testing::run_config(config, folder, {"training.steps=4"}));
    EXPECT_THAT(
        run.notes(), ::testing::Contains(AllOf(HasSubstr(base), HasSubstr("step-00000002"))));
    run.prepare();
    EXPECT_TRUE(run.train({}));
    run.write_model();
    std::map<std::string, std::vector<float>> parameters;
    testing::add_parameters(run, parameters);
    EXPECT_EQ(parameters, whole.parameters);
    EXPECT_TRUE(texts_in(run.output() / "model") == model);
  }
  EXPECT_THAT( // nothing to begin from
      [&] { testing::train(config, folder, {"training.restart=true"}); },
      ThrowsMessage<UserError>(HasSubstr("model.path: " + base + " is not there")));
}

} // namespace
} // namespace palimpsest
