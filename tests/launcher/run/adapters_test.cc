// Covers: launcher/compose/adapters.cc
// Runs that train adapters: what they write, keep and go on from.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/io/hf_folder.h>
#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/launcher/compose/checkpoint_export.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>
#include <palimpsest/tests/support/python/python.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/from_blob.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
namespace fs = std::filesystem;

const std::string kTwo = "lora={rank: 4, alpha: 8, dropout: 0.1, target_modules: [q_proj, v_proj]}";

/// 4 layers, hidden 24, 4 heads and 2 of keys and values: adapters of rank 4 on q and v have 1,344
/// parameters.
std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 64 * 17, 5);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 4, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256}}
data: {{files: [{}], format: text, sequence_length: 16}}
training: {{steps: 2, global_batch_size: 12, micro_batch_size: 1, threads: 1, reproducible: true}}
optimizer: {{learning_rate: 1e-2, max_grad_norm: 1}}
)",
      folder / "text.txt");
}

std::string golden(const std::string& name) {
  return (fs::path(PALIMPSEST_TEST_DATA) / name).string();
}

at::Tensor logits(Run& run) {
  return run.model().logits(at::arange(16, at::kLong).reshape({1, 16}));
}

/// A run of this config, with its weights read and nothing trained.
std::unique_ptr<Run> opened(
    const std::string& yaml,
    const TestFolder& folder,
    std::vector<std::string> overrides = {}) {
  overrides.push_back("training.output=" + (folder / "opened"));
  fs::remove_all(folder / "opened");
  auto run = std::make_unique<Run>(load_config_text(yaml, "test.yaml", overrides));
  run->prepare();
  return run;
}

double relative_difference(const at::Tensor& found, const at::Tensor& expected) {
  return (found - expected).abs().max().item<double>() / expected.abs().max().item<double>();
}

std::map<std::string, std::vector<float>> part(const Finished& finished, bool adapters) {
  std::map<std::string, std::vector<float>> found;
  for (const auto& [name, values] : finished.parameters) {
    if (is_adapter(name) == adapters) {
      found[name] = values;
    }
  }
  return found;
}

TEST(AdapterRuns, EveryLayoutWritesTheSameWholeFile) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const fs::path tensors = folder / "run/adapter/adapter_model.safetensors";
  const Finished plain = testing::train(config, folder, {kTwo});
  const std::string expected = read_file(tensors);
  const SafetensorsFile file(tensors);
  EXPECT_EQ(file.tensors().size(), 16);
  int64_t elements = 0;
  for (const StoredTensor& tensor : file.tensors()) {
    elements += tensor.elements();
    EXPECT_EQ(tensor.dtype, StoredDtype::F32);
  }
  EXPECT_EQ(elements, 1344);
  EXPECT_EQ(
      file.at("base_model.model.model.layers.3.self_attn.v_proj.lora_B.weight").shape,
      (std::vector<int64_t>{12, 4}));
  EXPECT_FALSE(fs::exists(folder / "run/model"));
  for (const auto& [ranks, zero] :
       std::vector<std::pair<int, int>>{{1, 3}, {2, 0}, {2, 3}, {3, 3}, {4, 1}, {4, 2}, {4, 3}}) {
    SCOPED_TRACE(fmt::format("{} ranks, zero {}", ranks, zero));
    const Finished found =
        testing::train_on(ranks, config, folder, {kTwo, fmt::format("parallel.zero={}", zero)});
    EXPECT_EQ(read_file(tensors), expected);
    EXPECT_EQ(found.records.losses(), plain.records.losses());
  }
}

// Shards are freed after their use and needed again by the recompute and the backward, by frozen
// weights' neighbours too.
TEST(AdapterRuns, FrozenShardsAreGatheredForWhatRunsAgain) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> overrides = {kTwo, "training.steps=3"};
  const Finished plain = testing::train(config, folder, overrides);
  const auto untrained = opened(config, folder, {kTwo});
  Finished start;
  testing::add_parameters(*untrained, start.parameters);
  for (const int ranks : {2, 3}) {
    for (const char* tape : {"full", "lean"}) {
      std::vector<std::string> all = overrides;
      all.insert(
          all.end(),
          {"parallel.zero=3",
           "activation_checkpointing=full",
           fmt::format("activation_checkpointing.tape={}", tape)});
      const Finished found = testing::train_on(ranks, config, folder, all);
      EXPECT_EQ(found.records.losses(), plain.records.losses());
      EXPECT_EQ(found.gradients, plain.gradients);
      EXPECT_EQ(found.parameters, plain.parameters);
      EXPECT_EQ(part(found, false), part(start, false)); // bitwise as they began
      EXPECT_NE(part(found, true), part(start, true));
    }
  }
}

TEST(AdapterRuns, GoOnFromACheckpointOfAnotherLayout) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> overrides = {kTwo, "checkpoint.save_every=2"};
  std::vector<std::string> longer = overrides;
  longer.emplace_back("training.steps=4");
  const Finished straight = testing::train(config, folder, longer);
  std::vector<std::string> sharded = overrides;
  sharded.emplace_back("parallel.zero=3");
  testing::train_on(2, config, folder, sharded);
  const Finished resumed = testing::train_on(1, config, folder, longer, /*anew=*/false);
  EXPECT_EQ(resumed.records.all.size(), 2);
  EXPECT_EQ(resumed.parameters, straight.parameters);
}

TEST(AdapterRuns, ExportsAdaptersOrTheMergedModel) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const Finished finished = testing::train(
      config, folder, {kTwo, "checkpoint.save_every=1", "lora.target_modules=all-linear"});
  EXPECT_TRUE(export_checkpoint(folder / "run", folder / "adapter").adapters);
  for (const char* name : {"adapter_config.json", "adapter_model.safetensors"}) {
    EXPECT_EQ(
        read_file(fs::path(folder / "adapter") / name),
        read_file(fs::path(folder / "run/adapter") / name));
  }
  EXPECT_FALSE(export_checkpoint(folder / "run", folder / "merged", Adapters::kMerged).adapters);
  EXPECT_FALSE(fs::exists(folder / "merged/adapter_config.json")); // it is a plain model
  const auto merged = opened(
      config,
      folder,
      {"model.path=" + (folder / "merged"),
       "model.family=null",
       "model.hidden_size=null",
       "model.num_hidden_layers=null",
       "model.num_attention_heads=null",
       "model.num_key_value_heads=null",
       "model.intermediate_size=null",
       "model.vocab_size=null"});
  EXPECT_FALSE(merged->model().has_adapters());
  EXPECT_LE(relative_difference(logits(*merged), logits(*finished.run)), 1e-5);
  // and it is another model than the one that training began with
  EXPECT_GT(relative_difference(logits(*opened(config, folder)), logits(*finished.run)), 1e-3);

  testing::train(config, folder, {"checkpoint.save_every=1"});
  EXPECT_THROW(export_checkpoint(folder / "run", folder / "none", Adapters::kMerged), UserError);
}

TEST(AdapterRuns, GoOnFromAnAdaptersFolder) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const Finished finished = testing::train(
      config, folder, {kTwo, "lora.patterns=[{match: \"layers.1\", rank: 2, alpha: 3}]"});
  fs::rename(folder / "run/adapter", folder / "adapter");
  const auto again = opened(config, folder, {"lora.adapter=" + (folder / "adapter")});
  EXPECT_TRUE(logits(*again).equal(logits(*finished.run)));
  // its dropout is not the config's, which is said
  EXPECT_THAT(fmt::format("{}", fmt::join(again->notes(), "\n")), HasSubstr("lora_dropout 0.1"));
}

// The run goes on where base and adapter that it began with are gone.
TEST(AdapterRuns, CheckpointsNeedNeitherBaseNorAdapter) {
  const TestFolder folder;
  fs::copy(golden("models/llama-tiny"), folder / "base");
  fs::copy(golden("lora/llama-tiny-qv"), folder / "adapter");
  fs::copy(golden("models/llama-tiny/golden.safetensors"), folder / "data.safetensors");
  const std::string config = fmt::format(
      R"(model: {{path: {0}/base}}
data: {{files: [{0}/data.safetensors], format: tensors}}
training: {{steps: 2, global_batch_size: 2, threads: 1}}
lora: {{adapter: {0}/adapter}}
optimizer: {{learning_rate: 1e-2}}
checkpoint: {{save_every: 2}}
)",
      fs::path(folder / "base").parent_path().string());
  const Finished straight = testing::train(config, folder, {"training.steps=4"});
  testing::train(config, folder);
  fs::remove_all(folder / "base");
  fs::remove_all(folder / "adapter");
  palimpsest::Run run(testing::run_config(config, folder, {"training.steps=4"}));
  run.prepare();
  run.train({});
  std::map<std::string, std::vector<float>> parameters;
  testing::add_parameters(run, parameters);
  EXPECT_EQ(parameters, straight.parameters);
}

TEST(AdapterRuns, StartFromTheReferencesAdapter) {
  const TestFolder folder;
  for (const auto& [adapter, model] :
       {std::pair("llama-tiny-qv", "llama-tiny"),
        std::pair("llama-tiny-rslora", "llama-tiny"),
        std::pair("gpt2-tiny-patterns", "gpt2-tiny")}) {
    SCOPED_TRACE(adapter);
    const std::string answers = golden(fmt::format("lora/{}/golden.safetensors", adapter));
    const Finished found = testing::train(
        fmt::format(
            R"(model: {{path: {}, attention_dropout: 0, dropout: 0, embedding_dropout: 0}}
data: {{files: [{}], format: tensors, shuffle: false}}
training: {{steps: 1, global_batch_size: 2, threads: 1}}
lora: {{adapter: {}}}
optimizer: {{learning_rate: 1e-3}}
)",
            golden(fmt::format("models/{}", model)),
            answers,
            golden(fmt::format("lora/{}", adapter))),
        folder);
    const auto expected = testing::floats(answers);
    EXPECT_NEAR(found.records.losses()[0], expected.at("loss")[0], 1e-5 * expected.at("loss")[0]);
    for (const auto& [name, values] : found.gradients) {
      const std::vector<float>& wanted = expected.at("grad.base_model.model." + name);
      double largest = 0;
      double difference = 0;
      for (size_t index = 0; index < wanted.size(); ++index) {
        largest = std::max<double>(largest, std::abs(wanted[index]));
        difference = std::max<double>(difference, std::abs(values[index] - wanted[index]));
      }
      EXPECT_LE(difference, 1e-5 * largest) << name;
    }
  }
}

TEST(AdapterRuns, SayWhatIsTrained) {
  const TestFolder folder;
  const auto run = opened(yaml(folder), folder, {kTwo});
  EXPECT_THAT(run->model().description(), HasSubstr("1344 are trained"));
  // parameters of all, but gradients and moments of what is trained alone
  int64_t states = 0;
  for (const UnitCost& unit : run->full_plan().job.model().units) {
    states += unit.gradient_bytes + unit.state_bytes;
  }
  EXPECT_EQ(states, 1344 * 3 * 4);
}

TEST(AdapterRuns, RefuseWhatFitsNoLayer) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const auto message = [&](const std::string& text, const std::vector<std::string>& overrides) {
    try {
      opened(text, folder, overrides);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("nothing was refused");
  };
  EXPECT_THAT(
      message(config, {"lora.target_modules=[query]"}),
      AllOf(HasSubstr("query"), HasSubstr("q_proj")));
  EXPECT_THAT(
      message(config, {"lora={}", "lora.patterns=[{match: nothing, rank: 2}]"}),
      HasSubstr("lora.patterns"));
  EXPECT_THAT(
      message(config, {"lora.adapter=" + golden("lora/gpt2-tiny-patterns")}),
      AllOf(HasSubstr("adapter_config.json"), HasSubstr("q_proj")));
  EXPECT_THAT(
      message(config, {"lora.adapter=" + golden("models/llama-tiny")}),
      HasSubstr("adapter_config.json"));
}

// The peers' Python, with peft: what is written there loads with equal logits.
TEST(AdapterRuns, PeftLoadsWhatIsWritten) {
  const PeerPython python = peer_python("peft");
  if (!python) {
    GTEST_SKIP() << python.reason;
  }
  const TestFolder folder;
  const fs::path tests = fs::path(PALIMPSEST_TEST_DATA).parent_path();
  std::string command = python.interpreter + " " + (tests / "launcher/run/peft_logits.py").string();
  std::map<std::string, at::Tensor> expected;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"llama-tiny", "{rank: 4, alpha: 8, target_modules: [q_proj, mlp.up_proj]}"},
      {"qwen3-tiny", "{rank: 8, rslora: true, patterns: [{match: layers.1, rank: 2, alpha: 3.5}]}"},
      {"gpt2-tiny", "{rank: 4, dropout: 0.1, patterns: [{match: c_attn, rank: 6}]}"}};
  for (const auto& [model, lora] : cases) {
    const std::string base = golden("models/" + model);
    const Finished finished = testing::train(
        fmt::format(
            R"(model: {{path: {0}}}
data: {{files: [{0}/golden.safetensors], format: tensors}}
training: {{steps: 3, global_batch_size: 2, threads: 1}}
lora: {1}
optimizer: {{learning_rate: 1e-2}}
)",
            base,
            lora),
        folder);
    const std::string kept = folder / model;
    fs::copy(folder / "run/adapter", kept);
    command += " " + base + " " + kept;
    expected[kept] = logits(*finished.run);
  }
  ASSERT_EQ(std::system((command + " 2>" + (folder / "log")).c_str()), 0)
      << read_file(folder / "log");
  for (const auto& [kept, ours] : expected) {
    std::string bytes = read_file(kept + "/logits.f32");
    ASSERT_EQ(bytes.size(), ours.nbytes()) << kept;
    const at::Tensor theirs = at::from_blob(bytes.data(), ours.sizes(), at::kFloat);
    EXPECT_LE(relative_difference(ours, theirs), 1e-5) << kept;
  }
}

} // namespace
} // namespace palimpsest
