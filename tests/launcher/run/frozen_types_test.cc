// A run that goes on with its frozen weights held in another type.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/models/frozen_codec.h>
#include <palimpsest/launcher/compose/checkpoint_export.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

using Values = std::map<std::string, std::vector<float>>;

/// No width is a multiple of a codec's 64 weights.
constexpr const char* kNew =
    "{family: llama, hidden_size: 40, num_hidden_layers: 2, num_attention_heads: 4, "
    "num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256}";

std::string yaml(const TestFolder& folder, const std::string& model) {
  std::vector<int32_t> ids;
  for (int index = 0; index < 18 * 12; ++index) {
    ids.push_back((index * index + 3 * index) % 67);
  }
  const std::vector<int64_t> shape = {18, 12};
  std::ofstream(folder / "ids.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("input_ids", "I32", shape, ids), test_tensor("labels", "I32", shape, ids)});
  return fmt::format(
      R"(model: {}
data: {{files: [{}]}}
training: {{steps: 4, global_batch_size: 6, micro_batch_size: 1, threads: 1}}
optimizer: {{learning_rate: 1e-2}}
checkpoint: {{save_every: 2}}
)",
      model,
      folder / "ids.safetensors");
}

/// What is trained: layers and what is one product with others, or adapters.
const std::vector<std::string> kTrained = {
    R"(training.freeze=["layers\\.0\\.", "[qk]_proj", embed])",
    "lora={rank: 2, target_modules: [q_proj, down_proj]}"};

/// Types of before and after, as values of `precision`.
const std::vector<std::pair<std::string, std::string>> kChanges = {
    {"{compute: fp32, frozen: int8}", "{compute: fp32, frozen: nf4}"},
    {"{compute: fp32, frozen: nf4}", "{compute: fp32, frozen: int8}"},
    {"{compute: bf16, frozen: nf4}", "{compute: bf16, frozen: fp32}"},
    {"{compute: fp32}", "{compute: fp32, frozen: nf4}"},
    {"{compute: bf16, frozen: int8}", "{compute: fp32}"},
    {"{compute: bf16, frozen: fp32}", "{compute: fp32, frozen: bf16}"},
};

std::set<std::string> trained_names(Run& run) {
  std::set<std::string> names;
  for (const auto& unit : run.model().chain().units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (unit->trainable()) {
        names.insert(parameter.name);
      }
    }
  }
  return names;
}

/// Goes on from step 2 of what the folder holds; what all ranks read, and trained to the end.
struct Changed {
  Values read;
  std::set<std::string> trained;
  std::string notes;
};
Changed go_on(
    int count,
    const std::string& config,
    const TestFolder& folder,
    const std::vector<std::string>& overrides) {
  Changed changed;
  std::filesystem::remove_all(folder / "run/step-00000004");
  std::mutex mutex;
  testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = count, .threads = 1});
    Run run(testing::run_config(config, folder, overrides), ranks, /*allow_change=*/true);
    run.prepare();
    {
      const std::lock_guard lock(mutex);
      testing::add_parameters(run, changed.read);
      changed.trained = trained_names(run);
      if (ranks.leads()) {
        changed.notes = fmt::format("{}", fmt::join(run.start_notes(), "\n"));
      }
    }
    EXPECT_TRUE(run.train({}));
    run.write_model();
  });
  return changed;
}

/// What a run begins with in this precision.
Values fresh(
    const std::string& config,
    const TestFolder& folder,
    const std::vector<std::string>& overrides) {
  Values values;
  auto all = overrides;
  all.push_back("training.output=" + (folder / "fresh"));
  std::filesystem::remove_all(folder / "fresh");
  Run run(load_config_text(config, "test.yaml", all));
  run.prepare();
  testing::add_parameters(run, values);
  return values;
}

// The folder's own weights, as a run has them that began in that type: nothing is rounded twice. At
// the end the folder's frozen weights are written, bit for bit.
TEST(FrozenTypes, ComeFromTheModelsFolder) {
  const std::string golden = std::string(PALIMPSEST_TEST_DATA) + "/models/llama-tiny";
  int number = 0;
  for (const std::string& trained : kTrained) {
    for (const auto& [before, after] : kChanges) {
      const TestFolder folder;
      const std::string config = yaml(folder, "{path: " + golden + "}");
      SCOPED_TRACE(trained + ": " + before + " -> " + after);
      const int ranks = 1 + number % 3;
      const auto overrides = [&](const std::string& precision, int zero) {
        return std::vector<std::string>{
            trained, "precision=" + precision, fmt::format("parallel.zero={}", zero)};
      };
      const Finished begun = testing::train_on(2, config, folder, overrides(before, 3));
      const Changed changed = go_on(ranks, config, folder, overrides(after, number++ % 4));
      const Values wanted = fresh(config, folder, overrides(after, 0));
      EXPECT_THAT(changed.notes, HasSubstr("are read from model.path"));
      ASSERT_EQ(changed.read.size(), wanted.size());
      for (const auto& [name, values] : wanted) {
        const bool moved = changed.trained.contains(name);
        EXPECT_EQ(changed.read.at(name) == values, !moved) << name;
      }
      if (trained.starts_with("training")) {
        const HfFolder original(golden);
        const HfFolder written(folder / "run/model");
        for (const auto& [name, entry] : original.tensors()) {
          EXPECT_EQ(
              std::ranges::equal(original.bytes(name), written.bytes(name)),
              !changed.trained.contains(name))
              << name;
        }
        export_checkpoint(folder / "run", folder / "exported");
        EXPECT_EQ(
            read_file(folder / "exported/model.safetensors"),
            read_file(folder / "run/model/model.safetensors"));
      }
    }
  }
}

/// What is left of the values of a linear weight once they were held.
std::vector<float> held_as(const std::string& precision, std::vector<float> values) {
  const size_t frozen = precision.find("frozen: ");
  const std::string type = frozen == std::string::npos
      ? "fp32"
      : precision.substr(frozen + 8, precision.size() - frozen - 9);
  const auto codec = frozen_codec(type, type == "fp32" ? at::kFloat : at::kDouble);
  if (codec == nullptr) {
    return values;
  }
  const auto count = static_cast<int64_t>(values.size());
  const at::Tensor wide = at::from_blob(values.data(), {count}, at::kFloat);
  const at::Tensor held =
      at::empty({codec->held(count)}, at::TensorOptions().dtype(codec->dtype()));
  EXPECT_TRUE(codec->encode(wide, held));
  codec->decode(held, wide);
  return values;
}

// Without a folder the checkpoint's own numbers are coded anew, whatever the layouts.
TEST(FrozenTypes, ComeFromTheCheckpointOfAModelWithoutAFolder) {
  int number = 0;
  for (const std::string& trained : kTrained) {
    for (const auto& [before, after] : kChanges) {
      const TestFolder folder;
      const std::string config = yaml(folder, kNew);
      SCOPED_TRACE(trained + ": " + before + " -> " + after);
      const auto overrides = [&](const std::string& precision, int zero) {
        return std::vector<std::string>{
            trained, "precision=" + precision, fmt::format("parallel.zero={}", zero)};
      };
      const Values start = fresh(config, folder, overrides(before, 0));
      testing::train_on(2, config, folder, overrides(before, 3));
      const Changed changed =
          go_on(1 + number % 3, config, folder, overrides(after, 3 - number % 4));
      ++number;
      for (const auto& [name, values] : start) {
        const bool coded =
            name.find("_proj") != std::string::npos && name.find("lora") == std::string::npos;
        if (!changed.trained.contains(name) && coded) {
          EXPECT_EQ(changed.read.at(name), held_as(after, values)) << name;
        }
      }
      EXPECT_FALSE(changed.trained.empty());
    }
  }
}

// Weights that are not those that were frozen would go on as if they were.
TEST(FrozenTypes, AFolderThatHasChangedIsRefused) {
  const TestFolder folder;
  const std::filesystem::path model = folder / "base";
  std::filesystem::copy(std::string(PALIMPSEST_TEST_DATA) + "/models/llama-tiny", model);
  const std::string config = yaml(folder, "{path: " + model.string() + "}");
  testing::train_on(1, config, folder, {kTrained[1], "precision={compute: fp32, frozen: nf4}"});
  std::fstream file(model / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(500'000); // in the middle of the layers' weights
  file << std::string(8, '\x45');
  file.close();
  EXPECT_THAT(
      [&] {
        go_on(2, config, folder, {kTrained[1], "precision={compute: fp32, frozen: int8}"});
      },
      ThrowsMessage<Error>(AllOf(
          HasSubstr("is no longer what training began with"), HasSubstr("precision.frozen"))));
}

} // namespace
} // namespace palimpsest
