#include <palimpsest/tests/core/models/chain_driver.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/decoder.h>

#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace palimpsest {
namespace {

struct Loaded {
  explicit Loaded(const std::string& name, at::ScalarType compute = at::kFloat)
      : folder(model_folder(name)),
        config(parse_decoder_config(folder.config_text(), folder.config_path())),
        driver(build_decoder(config, {.compute = compute})) {
    settle_folder(folder, config);
    load_weights(folder, driver.chain(), driver.source());
  }
  HfFolder folder;
  DecoderConfig config;
  ChainDriver driver;
};

TEST(Weights, EveryTensorIsLoadedExactlyAndExportedByteForByte) {
  for (const char* name :
       {"llama-tiny",
        "llama-tied",
        "llama-bf16-sharded",
        "qwen3-tiny",
        "gemma-tiny",
        "gpt2-tiny"}) {
    Loaded model(name);
    const TensorFiller fill = export_filler(model.driver.chain(), model.driver.source());
    for (const auto& [tensor, entry] : model.folder.tensors()) {
      const auto stored = model.folder.bytes(tensor);
      std::vector<std::byte> exported(stored.size());
      fill(entry.tensor, exported);
      EXPECT_EQ(std::memcmp(exported.data(), stored.data(), stored.size()), 0) << tensor;
      const at::Tensor expected =
          read_tensor(model.folder.files()[entry.file]->path().string(), tensor);
      EXPECT_TRUE(model.driver.parameter(tensor).equal(expected.to(at::kFloat))) << tensor;
    }
  }
}

TEST(Weights, Bf16ParametersOfABf16FolderAreItsValues) {
  Loaded model("llama-bf16-sharded", at::kBFloat16);
  for (const auto& [tensor, entry] : model.folder.tensors()) {
    const at::Tensor expected =
        read_tensor(model.folder.files()[entry.file]->path().string(), tensor);
    EXPECT_TRUE(model.driver.parameter(tensor).equal(expected)) << tensor;
  }
}

TEST(Weights, AShardGetsItsPart) {
  Loaded model("llama-tiny");
  const UnitSource whole = model.driver.source();
  std::vector<at::Tensor> shards(model.driver.chain().units.size());
  const UnitSource second_half = [&](int unit) {
    const at::Tensor values = whole(unit).values;
    const int64_t begin = values.numel() / 2;
    at::Tensor& shard = shards[static_cast<size_t>(unit)];
    shard = at::zeros({values.numel() - begin});
    return UnitValues{shard, begin};
  };
  load_weights(model.folder, model.driver.chain(), second_half);
  for (size_t unit = 0; unit < shards.size(); ++unit) {
    const at::Tensor values = whole(static_cast<int>(unit)).values;
    EXPECT_TRUE(shards[unit].equal(values.narrow(0, values.numel() / 2, shards[unit].numel())));
  }
}

TEST(Weights, ATiedModelGivesItsEmbeddingForTheHead) {
  Loaded model("llama-tied");
  const TensorFiller fill = export_filler(model.driver.chain(), model.driver.source());
  const StoredTensor& embedding = model.folder.at(kEmbeddingName);
  StoredTensor head = embedding;
  head.name = std::string(kHeadName);
  std::vector<std::byte> bytes(static_cast<size_t>(head.bytes()));
  fill(head, bytes);
  EXPECT_EQ(std::memcmp(bytes.data(), model.folder.bytes(kEmbeddingName).data(), bytes.size()), 0);
}

TEST(Weights, EveryFaultIsListedAtOnce) {
  const HfFolder folder(model_folder("llama-tiny"));
  DecoderConfig config = parse_decoder_config(folder.config_text(), folder.config_path());
  config.intermediate_size = 100; // mis-shaped
  config.num_hidden_layers = 5; // missing
  config.output_bias = true; // missing
  ChainDriver driver(build_decoder(config));
  try {
    load_weights(folder, driver.chain(), driver.source());
    FAIL();
  } catch (const UserError& error) {
    const std::string message = error.what();
    for (const char* name :
         {"model.layers.0.mlp.gate_proj.weight",
          "model.layers.4.self_attn.q_proj.weight",
          "model.layers.2.self_attn.o_proj.bias"}) {
      EXPECT_NE(message.find(name), std::string::npos) << name << " in " << message;
    }
  }
}

TEST(Weights, AnUnknownNameOrAPartOfAUnitIsNotExported) {
  Loaded model("llama-tiny");
  StoredTensor unknown = model.folder.at("model.norm.weight");
  std::vector<std::byte> bytes(static_cast<size_t>(unknown.bytes()));
  const UnitSource part = [&](int unit) {
    return UnitValues{model.driver.source()(unit).values.narrow(0, 1, 10), 1};
  };
  EXPECT_THROW(export_filler(model.driver.chain(), part)(unknown, bytes), InternalError);
  unknown.name = "model.norm.bias";
  EXPECT_THROW(
      export_filler(model.driver.chain(), model.driver.source())(unknown, bytes), InternalError);
}

} // namespace
} // namespace palimpsest
