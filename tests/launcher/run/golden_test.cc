// The golden models, trained through a whole run: config, data, plan, executor, export.

#include <palimpsest/tests/launcher/run/run_testing.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <tuple>

namespace palimpsest {
namespace {

using testing::Finished;
using testing::TestFolder;

const std::vector<std::string> kPolicies = {
    "none",
    "full",
    "{policy: every_n, n: 2}",
    "{policy: uniform, segments: 2}",
    "sqrt",
    "{policy: key_layers, recompute: [\"0\"]}",
    "{policy: key_layers, count: 1}",
};

std::string golden_yaml(const std::string& model) {
  const std::string folder = std::string(PALIMPSEST_TEST_DATA) + "/models/" + model;
  return fmt::format(
      R"(model: {{path: {0}}}
data: {{files: [{0}/golden.safetensors], format: tensors, shuffle: false}}
training: {{steps: 3, global_batch_size: 2, threads: 2}}
optimizer: {{name: adamw, learning_rate: 1e-3, betas: [0.9, 0.95], eps: 1e-8, weight_decay: 0.1, max_grad_norm: 1.0}}
)",
      folder);
}

/// Largest difference relative to the largest element of the tensor.
double relative_difference(const std::vector<float>& found, const std::vector<float>& expected) {
  double largest = 0;
  double difference = 0;
  for (size_t index = 0; index < expected.size(); ++index) {
    largest = std::max<double>(largest, std::abs(expected[index]));
    difference = std::max<double>(difference, std::abs(found[index] - expected[index]));
  }
  return largest == 0 ? difference : difference / largest;
}

class Golden : public ::testing::TestWithParam<const char*> {};

TEST_P(Golden, TrainsAsTheReferenceUnderEveryPolicyAndTape) {
  const TestFolder folder;
  const std::string yaml = golden_yaml(GetParam());
  const auto golden = testing::floats(
      std::string(PALIMPSEST_TEST_DATA) + "/models/" + GetParam() + "/golden.safetensors");
  const bool bf16_file = std::string(GetParam()) == "llama-bf16-sharded";
  for (const int micro : {2, 1}) {
    std::optional<Finished> first;
    for (const std::string& policy : kPolicies) {
      for (const char* tape : {"full", "lean"}) {
        const std::string what =
            fmt::format("{} micro-batch {}, {}, {}", GetParam(), micro, policy, tape);
        Finished found = testing::train(
            yaml,
            folder,
            {fmt::format("training.micro_batch_size={}", micro),
             "activation_checkpointing=" + policy,
             std::string("activation_checkpointing.tape=") + tape});
        if (first) {
          // Among each other the policies differ in no bit.
          EXPECT_EQ(found.records.losses(), first->records.losses()) << what;
          EXPECT_EQ(found.records.norms(), first->records.norms()) << what;
          EXPECT_EQ(found.gradients, first->gradients) << what;
          EXPECT_EQ(found.parameters, first->parameters) << what;
          continue;
        }
        for (size_t step = 0; step < 3; ++step) {
          const double loss = golden.at("losses")[step];
          const double norm = golden.at("grad_norms")[step];
          EXPECT_NEAR(found.records.losses()[step], loss, 1e-5 * loss) << what;
          EXPECT_NEAR(found.records.norms()[step], norm, 1e-5 * norm) << what;
        }
        size_t compared = 0;
        size_t different = 0;
        for (const auto& [name, gradient] : found.gradients) {
          EXPECT_LE(relative_difference(gradient, golden.at("grad." + name)), 1e-5) << what << name;
          if (bf16_file) {
            continue; // the exported weights are rounded to the file's bf16
          }
          const std::vector<float>& trained = found.parameters.at(name);
          const std::vector<float>& expected = golden.at("step3." + name);
          ASSERT_EQ(trained.size(), expected.size()) << name;
          for (size_t index = 0; index < trained.size(); ++index) {
            const double difference = std::abs(trained[index] - expected[index]);
            EXPECT_LE(difference, 2 * 1e-3 * 3) << what << name; // 2 x rate x steps
            ++compared;
            different += difference > 1e-5 ? 1 : 0;
          }
        }
        EXPECT_LE(different, compared / 200) << what; // 0.5 %
        first = std::move(found);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models,
    Golden,
    ::testing::Values("llama-tiny", "llama-tied", "llama3-rope", "llama-bf16-sharded"),
    [](const auto& golden) {
      std::string name = golden.param;
      std::erase(name, '-');
      return name;
    });

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

// A learning rate of 0 trains nothing: what goes in comes out, byte for byte.
TEST_P(Golden, ExportsTheTensorsThatItImported) {
  const TestFolder folder;
  const std::filesystem::path source = std::string(PALIMPSEST_TEST_DATA) + "/models/" + GetParam();
  for (const char* compute : {"fp32", "bf16"}) {
    const Finished finished = testing::train(
        golden_yaml(GetParam()),
        folder,
        {"optimizer.learning_rate=0",
         std::string("precision.compute=") + compute,
         "training.steps=1"});
    const std::filesystem::path model = finished.run->output() / "model";
    int files = 0;
    for (const auto& entry : std::filesystem::directory_iterator(model)) {
      EXPECT_EQ(bytes_of(entry.path()), bytes_of(source / entry.path().filename())) << entry.path();
      ++files;
    }
    EXPECT_GE(files, 2);
  }
}

} // namespace
} // namespace palimpsest
