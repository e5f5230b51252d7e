// Covers: launcher/compose/generation_model.cc
// Covers: launcher/compose/generation_source.cc
#include <palimpsest/launcher/compose/generation_model.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/tests/support/files/temporary_folder.h>
#include <palimpsest/tests/support/files/tensors.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const std::string kData = PALIMPSEST_TEST_DATA;
using Ids = std::vector<int32_t>;

Ids golden_ids(const fs::path& file) {
  const SafetensorsFile golden(file);
  for (const StoredTensor& tensor : golden.tensors()) {
    if (tensor.name == "input_ids") {
      std::vector<int64_t> ids(static_cast<size_t>(tensor.elements()));
      std::memcpy(ids.data(), golden.bytes(tensor).data(), golden.bytes(tensor).size());
      return {ids.begin(), ids.end()};
    }
  }
  return {};
}

std::vector<float> scores_of(GenerationModel& model, const Ids& ids) {
  std::vector<float> scores;
  model.compute("scoring", [&] {
    KvCache cache = model.generator().new_cache(std::ssize(ids));
    const at::Tensor row = model.generator().extend(cache, ids);
    const float* data = row.const_data_ptr<float>();
    scores.assign(data, data + row.numel());
  });
  return scores;
}

/// The largest |difference| over the largest |expected|.
double difference(const std::vector<float>& found, const std::vector<float>& expected) {
  double most = 0;
  double largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    most = std::max<double>(most, std::abs(found.at(i) - expected[i]));
    largest = std::max<double>(largest, std::abs(expected[i]));
  }
  return most / largest;
}

// The base is found beside the adapter, by the name that its config has.
TEST(GenerationModel, AppliesAdaptersAsTheReference) {
  for (const char* name : {"llama-tiny-qv", "llama-tiny-rslora", "gpt2-tiny-patterns"}) {
    SCOPED_TRACE(name);
    const fs::path folder = fs::path(kData) / "lora" / name;
    const Ids all = golden_ids(folder / "golden.safetensors");
    const std::vector<float> logits = testing::floats(folder / "golden.safetensors").at("logits");
    GenerationModel model(find_generation_source(folder.string(), {}));
    model.load();
    const auto width = static_cast<size_t>(model.model().vocabulary_size());
    const size_t length = all.size() / 2; // two rows
    ASSERT_EQ(logits.size(), all.size() * width);
    const Ids row(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(length));
    const auto last = logits.begin() + static_cast<std::ptrdiff_t>((length - 1) * width);
    const std::vector<float> expected(last, last + static_cast<std::ptrdiff_t>(width));
    EXPECT_LE(difference(scores_of(model, row), expected), 1e-5);
  }
}

TEST(GenerationModel, HoldsWeightsInTheTypeAskedFor) {
  const std::string llama = kData + "/models/llama-tiny";
  GenerationModel full(find_generation_source(llama, {}));
  full.load();
  const std::vector<float> expected = scores_of(full, {5, 6, 7});
  EXPECT_EQ(full.weight_bytes(), 250432 * 4);
  EXPECT_THAT(full.description(), HasSubstr("parameters in fp32 (978 KiB)"));
  GenerationModel half(find_generation_source(llama, {"precision.compute=bf16"}));
  half.load();
  EXPECT_EQ(half.weight_bytes(), 250432 * 2);
  EXPECT_LE(difference(scores_of(half, {5, 6, 7}), expected), 5e-2);
  GenerationModel eighth(find_generation_source(llama, {"precision.frozen=int8"}));
  eighth.load();
  EXPECT_LT(eighth.weight_bytes(), full.weight_bytes() / 2);
  const double off = difference(scores_of(eighth, {5, 6, 7}), expected);
  EXPECT_LE(off, 5e-2);
  EXPECT_GT(off, 0);
}

// Run at its most, it takes what was said, or a little less: the scratch of one text's longest prompt or
// step is there while all caches have grown.
TEST(GenerationModel, TakesTheLeastBudgetThatItNames) {
  for (const std::string& name : {"llama-tiny", "qwen2-window", "gpt2-tiny"}) {
    for (const Generator::Length& length :
         {Generator::Length{.prompt = 40, .tokens = 64},
          Generator::Length{.prompt = 1, .tokens = 60}}) {
      SCOPED_TRACE(name);
      const std::string folder = kData + "/models/" + name;
      const int64_t least =
          GenerationModel(find_generation_source(folder, {})).least_budget({length}, 1).bytes;
      const auto run_with = [&](int64_t budget) {
        GenerationModel model(
            find_generation_source(folder, {fmt::format("memory.device_budget={}", budget)}));
        model.load();
        model.compute("writing", [&] {
          KvCache cache = model.generator().new_cache(length.tokens);
          model.generator().extend(cache, Ids(static_cast<size_t>(length.prompt), 5));
          std::vector<KvCache*> caches = {&cache};
          for (int64_t token = length.prompt; token < length.tokens; ++token) {
            model.generator().step(caches, Ids{5});
          }
        });
      };
      run_with(least);
      EXPECT_THROW(run_with(least - least / 10), EnvironmentError);
    }
  }
}

TEST(GenerationModel, SaysWhichPositionsThereAre) {
  EXPECT_EQ(
      GenerationModel(find_generation_source(kData + "/models/gpt2-tiny", {})).max_positions(), 64);
}

TEST(GenerationModel, RefusesWhatIsNoModel) {
  const fs::path folder = make_temporary_folder();
  const auto error_of = [&](const std::string& name) -> std::string {
    try {
      GenerationModel{find_generation_source(name, {})};
    } catch (const UserError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of(folder.string()), HasSubstr("holds neither a model nor a checkpoint"));
  EXPECT_THAT(error_of((folder / "none").string()), HasSubstr("none"));
  std::ofstream(folder / "adapter_config.json") << R"({"peft_type": "LORA"})";
  EXPECT_THAT(error_of(folder.string()), HasSubstr("base_model_name_or_path is missing"));
  fs::remove_all(folder);
}

} // namespace
} // namespace palimpsest
