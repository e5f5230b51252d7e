// Covers: launcher/compose/model.cc
// Models from their keys and from folders, written and read back.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/compose/checkpoint_export.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/launcher/run/run_testing.h>
#include <palimpsest/tests/support/python/python.h>

#include <ATen/ops/arange.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <regex>
#include <set>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

constexpr int64_t kTokens = 16;

/// Training on four rows of 16 token ids; `model` is the map of its keys.
std::string decoder_yaml(const TestFolder& folder, const std::string& model) {
  std::vector<int32_t> ids;
  for (int index = 0; index < 4 * kTokens; ++index) {
    ids.push_back((index * index + 3 * index) % 67);
  }
  const std::vector<int64_t> shape = {4, kTokens};
  std::ofstream(folder / "ids.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("input_ids", "I32", shape, ids), test_tensor("labels", "I32", shape, ids)});
  return fmt::format(
      "model: {}\n"
      "data: {{files: [{}]}}\n"
      "training: {{steps: 2, global_batch_size: 4, threads: 2}}\n"
      "optimizer: {{learning_rate: 1e-2}}\n",
      model,
      folder / "ids.safetensors");
}

at::Tensor logits(Run& run) {
  const at::Tensor ids = at::arange(kTokens, at::TensorOptions().dtype(at::kLong)).view({1, -1});
  return run.model().logits(ids);
}

/// A run that continues from a folder, before its first step.
std::unique_ptr<Run> continued(const TestFolder& folder, const std::filesystem::path& model) {
  auto run = std::make_unique<Run>(load_config_text(
      decoder_yaml(folder, "{path: " + model.string() + "}"),
      "test.yaml",
      {"training.output=" + (folder / "continued"), "training.restart=true"}));
  run->prepare();
  return run;
}

TEST(Model, ANewModelIsWrittenAsAFolderThatContinuesWithEqualLogits) {
  for (const char* tied : {"false", "true"}) {
    for (const char* more :
         {"",
          ", attention_bias: true, mlp_bias: true, rope_scaling: {rope_type: linear, factor: 2}"}) {
      const TestFolder folder;
      const Finished finished = testing::train(
          decoder_yaml(
              folder,
              fmt::format(
                  "{{family: llama, vocab_size: 67, hidden_size: 24, num_hidden_layers: 2, "
                  "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 56, "
                  "hidden_act: gelu, rope_theta: 500, tie_word_embeddings: {}{}}}",
                  tied,
                  more)),
          folder);
      const std::filesystem::path written = finished.run->output() / "model";
      EXPECT_EQ(HfFolder(written).tensors().contains(kHeadName), std::string(tied) == "false");
      const auto again = continued(folder, written);
      EXPECT_TRUE(logits(*again).equal(logits(*finished.run))) << tied << more;
      testing::Records records;
      again->train({&records});
      EXPECT_LT(records.all.front().loss, finished.records.all.front().loss);
    }
  }
}

/// Keys of a small model of a family, but for its name.
std::string family_keys(std::string_view family) {
  std::string keys =
      "vocab_size: 67, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4, "
      "max_position_embeddings: 32";
  if (family != "gpt2") {
    keys += ", num_key_value_heads: 2, intermediate_size: 56, rope_theta: 500";
  }
  if (family == "qwen3" || family == "gemma") {
    keys += ", head_dim: 10, attention_bias: true";
  }
  if (family == "mistral" || family == "qwen2" || family == "qwen3") {
    keys += ", sliding_window: 5";
  }
  if (family == "qwen2") {
    keys += ", max_window_layers: 1";
  }
  return keys;
}

TEST(Model, EveryFamilyIsMadeFromItsKeysAndContinuesFromItsFolder) {
  for (const DecoderFamily& family : decoder_families()) {
    SCOPED_TRACE(family.name);
    const TestFolder folder;
    const Finished finished = testing::train(
        decoder_yaml(
            folder,
            fmt::format(
                "{{family: {}, dropout: 0.1, attention_dropout: 0.1, embedding_dropout: 0.1, {}}}",
                family.name,
                family_keys(family.name))),
        folder);
    const DecoderConfig& config = finished.run->model().decoder();
    EXPECT_EQ(config.family, &family);
    EXPECT_EQ(config.tie_word_embeddings, family.tie_word_embeddings);
    EXPECT_EQ(config.hidden_act, family.hidden_act);
    const std::filesystem::path written = finished.run->output() / "model";
    const nlohmann::json json = nlohmann::json::parse(read_file(written / "config.json"));
    EXPECT_EQ(json.at("architectures").at(0), family.architecture);
    const auto again = continued(folder, written);
    EXPECT_EQ(again->model().decoder().windows, config.windows);
    EXPECT_TRUE(logits(*again).equal(logits(*finished.run)));
  }
}

// The peers' Python, with transformers: what is written there loads with equal logits.
TEST(Model, TransformersLoadsTheFoldersOfAllFamilies) {
  const std::filesystem::path tests = std::filesystem::path(PALIMPSEST_TEST_DATA).parent_path();
  const PeerPython python = peer_python("transformers");
  if (!python) {
    GTEST_SKIP() << python.reason;
  }
  const TestFolder folder;
  std::string command =
      python.interpreter + " " + (tests / "launcher/run/transformers_logits.py").string();
  std::map<std::string, at::Tensor> expected;
  for (const DecoderFamily& family : decoder_families()) {
    const Finished finished = testing::train(
        decoder_yaml(
            folder, fmt::format("{{family: {}, {}}}", family.name, family_keys(family.name))),
        folder);
    const std::string kept = folder / std::string(family.name);
    std::filesystem::copy(finished.run->output() / "model", kept);
    command += " " + kept;
    expected[kept] = logits(*finished.run);
  }
  ASSERT_EQ(std::system((command + " 2>" + (folder / "log")).c_str()), 0)
      << read_file(folder / "log");
  for (const auto& [kept, ours] : expected) {
    const std::string theirs = read_file(kept + "/logits.f32");
    ASSERT_EQ(theirs.size(), ours.nbytes()) << kept;
    const auto* own = ours.const_data_ptr<float>();
    double largest = 0;
    double difference = 0;
    for (int64_t index = 0; index < ours.numel(); ++index) {
      float value = 0;
      std::memcpy(
          &value, theirs.data() + index * static_cast<int64_t>(sizeof(float)), sizeof(value));
      largest = std::max<double>(largest, std::abs(value));
      difference = std::max<double>(difference, std::abs(value - own[index]));
    }
    EXPECT_LE(difference, 1e-5 * largest) << kept;
  }
}

TEST(Model, AFolderOfABareGpt2TrainsTheSameAndKeepsItsNames) {
  const TestFolder folder;
  const HfFolder golden(std::string(PALIMPSEST_TEST_DATA) + "/models/gpt2-tiny");
  const std::filesystem::path bare = folder / "bare";
  std::filesystem::create_directories(bare);
  std::filesystem::copy(golden.config_path(), bare / "config.json");
  constexpr std::string_view kBase = "transformer.";
  std::vector<TestTensor> tensors = {
      {"h.0.attn.bias", "F32", {1, 1, 2, 2}, std::string(16, '\0')},
      {"h.0.attn.masked_bias", "F32", {}, std::string(4, '\0')}};
  std::set<std::string> names;
  for (const auto& [name, entry] : golden.tensors()) {
    const auto bytes = golden.bytes(name);
    ASSERT_TRUE(name.starts_with(kBase)) << name;
    names.insert(name.substr(kBase.size()));
    tensors.push_back(
        {name.substr(kBase.size()),
         "F32",
         entry.tensor.shape,
         std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size())});
  }
  std::ofstream(bare / "model.safetensors", std::ios::binary) << safetensors_text(tensors);

  const std::string keys = ", attention_dropout: 0, dropout: 0, embedding_dropout: 0}";
  const auto train = [&](const std::filesystem::path& path) {
    return testing::train(decoder_yaml(folder, "{path: " + path.string() + keys), folder);
  };
  const Finished whole = train(golden.path());
  const Finished found = train(bare);
  EXPECT_EQ(found.records.losses(), whole.records.losses());
  EXPECT_EQ(found.gradients, whole.gradients);
  const HfFolder written(found.run->output() / "model");
  std::set<std::string> written_names;
  for (const auto& [name, entry] : written.tensors()) {
    written_names.insert(name);
    EXPECT_EQ(entry.tensor.shape, golden.at(std::string(kBase) + name).shape) << name; // [in, out]
  }
  EXPECT_EQ(written_names, names);
  const auto again = continued(folder, written.path());
  EXPECT_TRUE(logits(*again).equal(logits(*found.run)));
}

TEST(Model, AHubIdIsFoundInTheLocalCache) {
  const TestFolder folder;
  const std::filesystem::path model = folder / "models--Org--Tiny-1.5";
  std::filesystem::create_directories(model / "refs");
  std::ofstream(model / "refs/main") << "c0ffee";
  std::filesystem::create_directories(model / "snapshots");
  std::filesystem::copy(
      std::string(PALIMPSEST_TEST_DATA) + "/models/qwen2-tiny", model / "snapshots/c0ffee");
  const char* before = std::getenv("HF_HUB_CACHE");
  const std::string old = before == nullptr ? "" : before;
  setenv("HF_HUB_CACHE", std::string(folder / "").c_str(), 1);
  const Finished found = testing::train(decoder_yaml(folder, "{path: Org/Tiny-1.5}"), folder);
  EXPECT_EQ(found.run->model().decoder().family->name, "qwen2");
  EXPECT_EQ(
      read_file(found.run->output() / "model/config.json"),
      read_file(model / "snapshots/c0ffee/config.json"));
  EXPECT_THAT(
      [&] { testing::train(decoder_yaml(folder, "{path: Org/Other}"), folder); },
      ThrowsMessage<UserError>(HasSubstr("hf download Org/Other")));
  setenv("HF_HUB_CACHE", old.c_str(), 1);
}

/// The tied golden model with its embedding under other names: "embedding", "head", or both.
std::string tied_folder(const TestFolder& folder, const std::string& form) {
  const HfFolder golden(std::string(PALIMPSEST_TEST_DATA) + "/models/llama-tied");
  const std::filesystem::path path = folder / form;
  std::filesystem::create_directories(path);
  std::filesystem::copy(golden.config_path(), path / "config.json");
  std::vector<TestTensor> tensors;
  for (const auto& [name, entry] : golden.tensors()) {
    const auto bytes = golden.bytes(name);
    std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    if (name != kEmbeddingName) {
      tensors.push_back({name, "F32", entry.tensor.shape, text});
      continue;
    }
    if (form != "head") {
      tensors.push_back({name, "F32", entry.tensor.shape, text});
    }
    if (form == "different") {
      text.front() = static_cast<char>(text.front() ^ 1);
    }
    if (form != "embedding") {
      tensors.push_back({std::string(kHeadName), "F32", entry.tensor.shape, text});
    }
  }
  std::ofstream(path / "model.safetensors", std::ios::binary) << safetensors_text(tensors);
  return path;
}

TEST(Model, ATiedFolderTrainsTheSameInEachOfItsForms) {
  const TestFolder folder;
  std::optional<Finished> first;
  for (const char* form : {"embedding", "head", "both"}) {
    const std::string path = tied_folder(folder, form);
    Finished found = testing::train(decoder_yaml(folder, "{path: " + path + "}"), folder);
    EXPECT_FALSE(found.parameters.contains(std::string(kHeadName))) << form;
    const auto again = continued(folder, found.run->output() / "model");
    EXPECT_TRUE(logits(*again).equal(logits(*found.run))) << form;
    if (!first) {
      first = std::move(found);
      continue;
    }
    EXPECT_EQ(found.records.losses(), first->records.losses()) << form;
    EXPECT_EQ(found.parameters, first->parameters) << form;
  }
  const std::string different = tied_folder(folder, "different");
  EXPECT_THAT(
      [&] { testing::train(decoder_yaml(folder, "{path: " + different + "}"), folder); },
      ThrowsMessage<UserError>(AllOf(HasSubstr(different), HasSubstr("the two differ"))));
}

TEST(Model, AnUntiedFolderNeedsItsHead) {
  const TestFolder folder;
  const std::string path = tied_folder(folder, "embedding");
  nlohmann::json config = nlohmann::json::parse(read_file(path + "/config.json"));
  config["tie_word_embeddings"] = false;
  std::ofstream(path + "/config.json") << config;
  EXPECT_THAT(
      [&] { testing::train(decoder_yaml(folder, "{path: " + path + "}"), folder); },
      ThrowsMessage<UserError>(AllOf(
          HasSubstr(path),
          HasSubstr("missing"),
          HasSubstr("lm_head.weight"),
          HasSubstr("tie_word_embeddings"))));
}

TEST(Model, ADecoderRefusesAnActivationItDoesNotHave) {
  const TestFolder folder;
  EXPECT_THAT(
      [&] { testing::train(decoder_yaml(folder, "{preset: tiny, hidden_act: tanh}"), folder); },
      ThrowsMessage<UserError>(AllOf(HasSubstr("model.hidden_act"), HasSubstr("tanh"))));
}

std::vector<double> layer(
    const std::map<std::string, std::vector<float>>& parameters,
    int number,
    const std::vector<double>& x,
    bool activated) {
  const std::string name = "layers." + std::to_string(number);
  const std::vector<float>& weight = parameters.at(name + ".weight");
  const std::vector<float>& bias = parameters.at(name + ".bias");
  std::vector<double> y(bias.begin(), bias.end());
  for (size_t row = 0; row < y.size(); ++row) {
    for (size_t column = 0; column < x.size(); ++column) {
      y[row] += static_cast<double>(weight[row * x.size() + column]) * x[column];
    }
    y[row] = activated ? std::tanh(y[row]) : y[row];
  }
  return y;
}

// Two inputs, two hidden layers of 3 with tanh, one output, on the truth table of exclusive or; at
// a learning rate of 0 the parameters in the folder are those of the loss.
TEST(Model, AnMlpOnATensorsFileHasTheLossComputedByHand) {
  const TestFolder folder;
  const std::vector<float> inputs = {0, 0, 0, 1, 1, 0, 1, 1};
  const std::vector<float> targets = {0, 1, 1, 0};
  std::ofstream(folder / "xor.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("inputs", "F32", {4, 2}, inputs),
       test_tensor("targets", "F32", {4, 1}, targets)});
  const std::string yaml = fmt::format(
      "model: {{family: mlp, input_size: 2, hidden_size: 3, num_hidden_layers: 2, output_size: 1, "
      "hidden_act: tanh}}\n"
      "data: {{files: [{}]}}\n"
      "training: {{epochs: 1, global_batch_size: 4, micro_batch_size: 2}}\n"
      "optimizer: {{learning_rate: 0}}\n",
      folder / "xor.safetensors");
  const Finished finished = testing::train(yaml, folder);
  double expected = 0;
  for (size_t row = 0; row < 4; ++row) {
    std::vector<double> x = {inputs[2 * row], inputs[2 * row + 1]};
    x = layer(finished.parameters, 0, x, true);
    x = layer(finished.parameters, 1, x, true);
    x = layer(finished.parameters, 2, x, false);
    expected += (x[0] - targets[row]) * (x[0] - targets[row]) / 4;
  }
  ASSERT_EQ(finished.records.all.size(), 1U);
  EXPECT_GT(expected, 0.01);
  EXPECT_NEAR(finished.records.all.front().loss, expected, 1e-6);
  EXPECT_EQ(finished.records.all.front().tokens, 4);

  const Finished trained =
      testing::train(yaml, folder, {"optimizer.learning_rate=0.05", "training.epochs=200"});
  EXPECT_LT(trained.records.all.back().loss, 0.01); // it learns the table
}

// Whatever the weights that are not trained were held in, and whoever writes them.
TEST(Model, FrozenWeightsAreWrittenAsTheFolderHasThem) {
  const std::string golden = std::string(PALIMPSEST_TEST_DATA) + "/models/llama-tiny";
  const HfFolder original(golden);
  for (const char* precision :
       {"fp32", "bf16", "{compute: bf16, frozen: nf4}", "{compute: fp32, frozen: int8}"}) {
    SCOPED_TRACE(precision);
    const TestFolder folder;
    const Finished finished = testing::train(
        decoder_yaml(folder, "{path: " + golden + "}"),
        folder,
        {std::string("precision=") + precision,
         R"(training.freeze=["layers\\.[0-2]\\.", embed, "[qv]_proj", up_proj])",
         "checkpoint.save_every=2"});
    const std::filesystem::path written = finished.run->output() / "model";
    const HfFolder after(written);
    for (const auto& [name, entry] : original.tensors()) {
      const auto before = original.bytes(name);
      const bool same = std::ranges::equal(before, after.bytes(name));
      const auto has = [&](const char* part) { return name.find(part) != std::string::npos; };
      const bool trained =
          (has("layers.3.") && !has("q_proj") && !has("v_proj") && !has("up_proj")) ||
          name == "model.norm.weight" || name == "lm_head.weight";
      EXPECT_EQ(same, !trained) << name;
    }
    export_checkpoint(finished.run->output(), folder / "exported");
    EXPECT_EQ(
        read_file(folder / "exported/model.safetensors"), read_file(written / "model.safetensors"));
  }
}

double norm_of(const std::map<std::string, std::vector<float>>& gradients) {
  double squares = 0;
  for (const auto& [name, values] : gradients) {
    for (const float value : values) {
      squares += static_cast<double>(value) * value;
    }
  }
  return std::sqrt(squares);
}

// Alone too what is otherwise one product with others, a gain, or the embedding: what is trained has
// the gradients of a run that trains all, and is what the norm is of; what is not stays, bit for bit.
TEST(Model, AnyParameterMayBeFrozenAlone) {
  const std::string golden = std::string(PALIMPSEST_TEST_DATA) + "/models/qwen2-tiny";
  const TestFolder folder;
  const std::string config = decoder_yaml(folder, "{path: " + golden + "}");
  const std::vector<std::string> clipped = {"optimizer.max_grad_norm=0.01"};
  Finished plain = testing::train(config, folder, clipped);
  plain.run.reset(); // an output folder is one run's at a time
  const HfFolder original(golden);
  for (const char* expression :
       {".*k_proj.*",
        "gate_proj",
        "layers.0.self_attn.q_proj.weight",
        "v_proj.bias",
        "up_proj|q_proj",
        "input_layernorm",
        "model.norm",
        "embed"}) {
    SCOPED_TRACE(expression);
    std::vector<std::string> overrides = clipped;
    overrides.push_back(fmt::format("training.freeze=['{}']", expression));
    const Finished parts = testing::train(config, folder, overrides);
    const HfFolder after(folder / "run/model");
    size_t frozen = 0;
    for (const auto& [name, values] : plain.gradients) {
      const bool trained = !std::regex_search(name, std::regex(expression));
      frozen += trained ? 0 : 1;
      EXPECT_EQ(std::ranges::equal(original.bytes(name), after.bytes(name)), !trained) << name;
      ASSERT_EQ(parts.gradients.contains(name), trained) << name;
      if (trained) {
        const float largest = std::abs(
            *std::ranges::max_element(values, {}, [](float value) { return std::abs(value); }));
        for (size_t index = 0; index < values.size(); ++index) {
          ASSERT_NEAR(parts.gradients.at(name)[index], values[index], 1e-5 * largest) << name;
        }
      }
    }
    EXPECT_GT(frozen, 0U);
    const double norm = norm_of(parts.gradients);
    EXPECT_LT(norm, norm_of(plain.gradients));
    EXPECT_NEAR(parts.records.all.front().grad_norm, norm, 1e-5 * norm);
  }
}

TEST(Model, FreezingNothingOrAllIsRefused) {
  const TestFolder folder;
  const auto refused = [&](const std::vector<std::string>& overrides, const char* part) {
    EXPECT_THAT(
        [&] {
          testing::train(
              decoder_yaml(
                  folder, "{path: " + std::string(PALIMPSEST_TEST_DATA) + "/models/llama-tiny}"),
              folder,
              overrides);
        },
        ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused(
      {"training.freeze=[layer9]"}, "training.freeze: 'layer9' is found in no parameter's name");
  refused({"training.freeze=[model, lm_head]"}, "training.freeze leaves nothing to train");
  refused({"precision.frozen=nf4"}, "all linear weights of the layers are trained");
  refused({"precision.frozen=fp32"}, "all linear weights of the layers are trained");
  refused(
      {"precision.frozen=nf4", "training.freeze=[norm]"},
      "all linear weights of the layers are trained");
}

} // namespace
} // namespace palimpsest
