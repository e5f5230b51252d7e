// Covers: launcher/compose/agreed_cost.cc
// Covers: launcher/compose/whole_units.cc
// Every layout of ranks and states gives the numbers of one process.

#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <set>
#include <span>
#include <tuple>

namespace palimpsest {
namespace {

using testing::Finished;
using testing::TestFolder;

constexpr int kSteps = 5;
constexpr double kRate = 1e-3;

std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 64 * 17, 5);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 32, num_hidden_layers: 3, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 88, vocab_size: 256, dropout: 0.1, attention_dropout: 0.1}}
data: {{files: [{}], format: text, sequence_length: 16}}
training: {{steps: {}, micro_batch_size: 1, threads: 1}}
optimizer: {{learning_rate: {}, weight_decay: 0.1, max_grad_norm: 1}}
)",
      folder / "text.txt",
      kSteps,
      kRate);
}

struct Layout {
  int ranks;
  int zero;
  int replicate;
};

std::vector<Layout> layouts() {
  std::vector<Layout> all;
  for (const int ranks : {1, 2, 3, 4}) {
    for (const int zero : {0, 1, 2, 3}) {
      all.push_back({ranks, zero, zero == 0 ? ranks : 1});
    }
  }
  all.push_back({4, 1, 2}); // hybrids
  all.push_back({4, 2, 2});
  all.push_back({4, 3, 2});
  return all;
}

/// Whether this case of a long list runs here: all with PALIMPSEST_FULL=1, else one of `every`, which
/// has no factor in common with the numbers of policies (3) and layouts (19).
bool chosen(int number, int every) {
  return std::getenv("PALIMPSEST_FULL") != nullptr || number % every == 0;
}

void expect_near(const Finished& found, const Finished& plain, const std::string& precision) {
  const bool narrow = precision != "fp32";
  const double loss_tolerance = narrow ? 5e-3 : 1e-5;
  const double norm_tolerance = narrow ? 2e-2 : 1e-4;
  ASSERT_EQ(found.records.all.size(), kSteps);
  for (size_t step = 0; step < kSteps; ++step) {
    const double loss = plain.records.losses()[step];
    EXPECT_NEAR(found.records.losses()[step], loss, loss_tolerance * loss) << step;
    const double norm = plain.records.norms()[step];
    EXPECT_NEAR(found.records.norms()[step], norm, norm_tolerance * norm) << step;
  }
  if (precision.find("master: none") != std::string::npos) {
    return; // a number that is rounded the other way differs by far more than a step
  }
  size_t compared = 0;
  size_t different = 0;
  for (const auto& [name, values] : plain.parameters) {
    for (size_t index = 0; index < values.size(); ++index) {
      const double difference = std::abs(found.parameters.at(name)[index] - values[index]);
      EXPECT_LE(difference, 2 * kRate * kSteps) << name;
      different += difference > (narrow ? 1e-3 : 1e-5) ? 1 : 0;
    }
    compared += values.size();
  }
  EXPECT_LE(different, compared / 200);
}

void expect_same(const Finished& found, const Finished& plain) {
  EXPECT_EQ(found.records.losses(), plain.records.losses());
  EXPECT_EQ(found.records.norms(), plain.records.norms());
  EXPECT_EQ(found.gradients, plain.gradients);
  EXPECT_EQ(found.parameters, plain.parameters);
  for (size_t step = 0; step < plain.records.all.size(); ++step) {
    EXPECT_EQ(found.records.all[step].loss_scale, plain.records.all[step].loss_scale) << step;
  }
}

/// One case of the matrix: `ranks` of a layout against one process, whose run is kept by its settings.
struct Case {
  std::vector<std::string> trained;
  std::string precision;
  bool reproducible = true;
  int accumulation = 1;
  Layout layout;
  std::string policy;
};

void expect_as_one_process(
    const Case& given,
    const std::string& config,
    const TestFolder& folder,
    std::map<std::string, Finished>& references) {
  const Layout& layout = given.layout;
  std::vector<std::string> overrides = given.trained;
  overrides.push_back(
      fmt::format("training.global_batch_size={}", layout.ranks * given.accumulation));
  overrides.push_back(fmt::format("precision={}", given.precision));
  overrides.push_back(fmt::format("training.reproducible={}", given.reproducible));
  const std::string key = fmt::format("{}", fmt::join(overrides, " "));
  if (!references.contains(key)) {
    references[key] = testing::train(config, folder, overrides);
  }
  const Finished& plain = references.at(key);
  overrides.push_back(fmt::format("activation_checkpointing={}", given.policy));
  overrides.push_back(fmt::format("parallel.zero={}", layout.zero));
  if (layout.zero > 0) {
    overrides.push_back(fmt::format("parallel.replicate={}", layout.replicate));
  }
  SCOPED_TRACE(fmt::format("{} ranks, {}", layout.ranks, fmt::join(overrides, " ")));
  const Finished found = testing::train_on(layout.ranks, config, folder, overrides);
  if (given.reproducible) {
    expect_same(found, plain);
  } else {
    expect_near(found, plain, given.precision);
  }
}

TEST(Layouts, EveryLayoutTrainsAsOneProcess) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  std::map<std::string, Finished> references;
  std::set<std::string> seen; // what the sample has had of each choice
  int number = 0;
  for (const auto& trained : testing::kTrained) {
    for (const std::string& precision : testing::kPrecisions) {
      const bool usual = precision == "fp32" || precision == "bf16";
      const int every = (usual ? 10 : 28) * (trained.empty() ? 1 : 2);
      for (const bool reproducible : {true, false}) {
        for (const int accumulation : {1, 3}) {
          for (const Layout& layout : layouts()) {
            for (const char* policy : {"none", "full", "uniform"}) {
              if (!chosen(number++, every)) {
                continue;
              }
              const std::string what = trained.empty() ? "whole, " : "adapters, ";
              for (const std::string& choice :
                   {precision, std::string(policy), fmt::format("zero {}", layout.zero)}) {
                seen.insert(what + choice);
              }
              seen.insert(fmt::format("{}{} ranks", what, layout.ranks));
              expect_as_one_process(
                  {trained, precision, reproducible, accumulation, layout, policy},
                  config,
                  folder,
                  references);
            }
          }
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 2 * (4U + 3 + 4 + 4));
}

/// Expressions, and whether they freeze a parameter.
struct Frozen {
  const char* expressions;
  std::function<bool(const std::string& name)> of;
};
std::vector<Frozen> frozen_choices() {
  return {
      {R"(["layers\\.[02]\\.", embed, "model\\.norm"])",
       [](const std::string& name) {
         return name.find("layers.1.") == std::string::npos && name != "lm_head.weight";
       }},
      {R"(["[kv]_proj", gate_proj, "1.*q_proj", input_layernorm])", [](const std::string& name) {
         const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
         return has("k_proj") || has("v_proj") || has("gate_proj") || has("input_layernorm") ||
             has("layers.1.self_attn.q_proj");
       }}};
}

// Two of three layers, the embedding and a norm are frozen, or parts of what is one product; held in
// all types: nothing of them moves, and every layout gives the bits of one process.
TEST(Layouts, FrozenWeightsStayAsTheyWereOnEveryLayout) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  int number = 0;
  for (const char* precision :
       {"fp32",
        "{compute: fp32, frozen: bf16}",
        "{compute: fp32, frozen: int8}",
        "{compute: bf16, frozen: nf4}",
        "{compute: bf16, master: none, frozen: fp32}"}) {
    std::map<std::pair<bool, int>, Finished> references; // by expressions and samples of a step
    for (const Layout& layout : layouts()) {
      for (const char* policy : {"none", "full", "uniform"}) {
        if (!chosen(number++, 14)) {
          continue;
        }
        const bool parts = number / 14 % 2 == 0;
        const Frozen frozen = frozen_choices()[parts ? 1 : 0];
        std::vector<std::string> overrides = {
            fmt::format("training.global_batch_size={}", layout.ranks * 2),
            fmt::format("precision={}", precision),
            std::string("training.freeze=") + frozen.expressions,
            "training.reproducible=true"};
        if (!references.contains({parts, layout.ranks})) {
          references[{parts, layout.ranks}] = testing::train(config, folder, overrides);
        }
        const Finished& plain = references.at({parts, layout.ranks});
        const std::vector<std::string> one = overrides;
        overrides.push_back(fmt::format("activation_checkpointing={}", policy));
        overrides.push_back(fmt::format("parallel.zero={}", layout.zero));
        if (layout.zero > 0) {
          overrides.push_back(fmt::format("parallel.replicate={}", layout.replicate));
        }
        SCOPED_TRACE(fmt::format("{} ranks, {}", layout.ranks, fmt::join(overrides, " ")));
        const Finished found = testing::train_on(layout.ranks, config, folder, overrides);
        expect_same(found, plain);
        std::filesystem::remove_all(folder / "run");
        palimpsest::Run untrained(testing::run_config(config, folder, one));
        untrained.prepare();
        std::map<std::string, std::vector<float>> before;
        testing::add_parameters(untrained, before);
        for (const auto& [name, values] : found.parameters) {
          const bool trained = !frozen.of(name);
          EXPECT_EQ(found.gradients.contains(name), trained) << name;
          EXPECT_EQ(values == before.at(name), !trained) << name;
        }
      }
    }
  }
}

// 5 samples in batches of 4 on 4 ranks: the last window has one sample, so three ranks have none,
// in every epoch.
TEST(Layouts, RanksWithoutSamplesTakePart) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  std::ofstream(folder / "text.txt") << std::string(5 * 17, 'x');
  for (const std::string& precision : testing::kPrecisions) {
    for (const char* tape : {"full", "lean"}) {
      const std::vector<std::string> overrides = {
          "training.global_batch_size=4",
          "training.steps=4",
          "training.reproducible=true",
          fmt::format("precision={}", precision),
          fmt::format("activation_checkpointing.tape={}", tape)};
      const Finished plain = testing::train(config, folder, overrides);
      for (const int zero : {0, 2, 3}) {
        std::vector<std::string> all = overrides;
        all.push_back(fmt::format("parallel.zero={}", zero));
        all.push_back(fmt::format("activation_checkpointing={}", zero == 2 ? "full" : "none"));
        const Finished found = testing::train_on(4, config, folder, all);
        EXPECT_EQ(found.records.losses(), plain.records.losses()) << precision << tape << zero;
        EXPECT_EQ(found.parameters, plain.parameters) << precision << tape << zero;
      }
    }
  }
}

// One sample for four ranks, of features.
TEST(Layouts, RanksWithoutSamplesOfAnMlpTakePart) {
  const TestFolder folder;
  const TensorDeclaration inputs{"inputs", StoredDtype::F32, {1, 3}};
  const TensorDeclaration labels{"targets", StoredDtype::F32, {1, 2}};
  SafetensorsWriter writer(folder / "data.safetensors", {inputs, labels});
  const std::vector<float> numbers = {0.5F, -1, 2};
  for (const StoredTensor& tensor : writer.tensors()) {
    writer.write(
        tensor.name, std::as_bytes(std::span(numbers)).first(static_cast<size_t>(tensor.bytes())));
  }
  writer.commit();
  const std::string config = fmt::format(
      R"(model: {{family: mlp, input_size: 3, output_size: 2, hidden_size: 5, num_hidden_layers: 2}}
data: {{files: [{}], format: tensors}}
training: {{steps: 3, global_batch_size: 4, micro_batch_size: 1, threads: 1, reproducible: true}}
optimizer: {{learning_rate: 1e-2}}
)",
      folder / "data.safetensors");
  const Finished plain = testing::train(config, folder);
  for (const char* zero : {"parallel.zero=1", "parallel.zero=3"}) {
    const Finished found = testing::train_on(4, config, folder, {zero});
    EXPECT_EQ(found.records.losses(), plain.records.losses()) << zero;
    EXPECT_EQ(found.parameters, plain.parameters) << zero;
  }
}

/// Eight samples of three features, in file order; sample `bad` overflows in the model.
std::string features_yaml(const TestFolder& folder, int bad, float feature = 3e38F) {
  SafetensorsWriter writer(
      folder / "data.safetensors",
      {{"inputs", StoredDtype::F32, {8, 3}}, {"targets", StoredDtype::F32, {8, 2}}});
  for (const StoredTensor& tensor : writer.tensors()) {
    std::vector<float> numbers(static_cast<size_t>(tensor.elements()));
    for (size_t index = 0; index < numbers.size(); ++index) {
      numbers[index] = std::sin(static_cast<float>(index));
    }
    if (tensor.name == "inputs") {
      numbers[static_cast<size_t>(3 * bad)] = feature;
    }
    writer.write(tensor.name, std::as_bytes(std::span(numbers)));
  }
  writer.commit();
  return fmt::format(
      R"(model: {{family: mlp, input_size: 3, output_size: 2, hidden_size: 5, num_hidden_layers: 2}}
data: {{files: [{}], format: tensors, shuffle: false}}
training: {{steps: 6, global_batch_size: 4, micro_batch_size: 1, threads: 1, reproducible: true}}
optimizer: {{learning_rate: 1e-2}}
checkpoint: {{save_every: 1, keep_last: 2}}
)",
      folder / "data.safetensors");
}

// Samples 4 to 6 are rank 0's to 2's in every second step: what overflows there makes all ranks skip
// these steps, and nothing of it gets into the parameters, the moments or the checkpoints.
TEST(Layouts, OneRanksOverflowSkipsTheStepOnAll) {
  for (const auto& [bad, feature, zero] : std::vector<std::tuple<int, float, const char*>>{
           {4, 3e38F, "parallel.zero=1"},
           {4, -3e38F, "parallel.zero=0"},
           {5, 3e38F, "parallel.zero=3"},
           {5, -3e38F, "parallel.zero=2"},
           {6, 3e38F, "parallel.zero=0"},
           {6, -3e38F, "parallel.zero=2"},
           {6, 3e38F, "parallel.zero=3"}}) {
    SCOPED_TRACE(fmt::format("sample {}, {}", bad, feature));
    const TestFolder folder;
    const std::string config = features_yaml(folder, bad, feature);
    const Finished plain = testing::train(config, folder);
    const Finished found = testing::train_on(4, config, folder, {zero});
    ASSERT_EQ(found.records.all.size(), 6U);
    for (size_t step = 0; step < 6; ++step) {
      EXPECT_EQ(found.records.all[step].skipped, step % 2 == 1) << zero << " " << step;
    }
    EXPECT_EQ(found.parameters, plain.parameters) << zero;
    for (const auto& [name, values] : found.parameters) {
      EXPECT_TRUE(std::ranges::all_of(values, [](float value) { return std::isfinite(value); }));
    }
    EXPECT_EQ(CheckpointReader(folder / "run/step-00000006").info().updates(), 3); // of 6 steps
    EXPECT_FALSE(std::filesystem::exists(folder / "run/step-00000004")); // the last two are kept
  }
}

// All ranks end at the same step, with the same text, and the newest checkpoint is from before it.
TEST(Layouts, MoreSkippedStepsThanAllowedEndTheRun) {
  const TestFolder folder;
  const std::string config = features_yaml(folder, 6);
  const std::vector<std::string> texts =
      testing::errors_on(4, config, folder, {"parallel.zero=3", "training.max_skipped_steps=0"});
  ASSERT_EQ(texts.size(), 4U);
  EXPECT_EQ(std::set<std::string>(texts.begin(), texts.end()).size(), 1U);
  EXPECT_EQ(texts.front().substr(0, 7), "step 2:");
  EXPECT_TRUE(std::filesystem::exists(folder / "run/step-00000001"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/step-00000002"));
  // Every second step is skipped, never two in a row.
  EXPECT_EQ(
      testing::train_on(4, config, folder, {"training.max_skipped_steps=1"}).records.all.size(),
      6U);
}

// Four ranks of a sharded model: reading, training's states and writing hold a quarter, and one
// unit whole at a time.
TEST(Layouts, NoRankHoldsTheWholeModel) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  testing::on_ranks(4, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = 4, .threads = 1});
    palimpsest::Run run(
        testing::run_config(config, folder, {"parallel.zero=3", "training.global_batch_size=4"}),
        ranks);
    int64_t all = 0;
    int64_t largest = 0;
    for (const auto& unit : run.model().chain().units) {
      all += 4 * unit->numel();
      largest = std::max(largest, 4 * unit->numel());
    }
    const int64_t padding = 4 * 4096 * static_cast<int64_t>(run.model().chain().units.size());
    run.memory().reset_peaks();
    const int64_t before = run.memory().total().live;
    run.prepare();
    // parameters and two moments in quarters, and the buffers that weights are made in
    const int64_t states = 3 * (all / 4 + padding);
    EXPECT_LE(run.memory().total().peak - before, states + largest);
    run.memory().reset_peaks();
    const int64_t held = run.memory().total().live;
    run.write_model();
    EXPECT_LE(run.memory().total().peak - held, 3 * (largest + padding));
  });
}

} // namespace
} // namespace palimpsest
