// The golden models, trained through a whole run: config, data, plan, executor, export.

#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/models/golden_models.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <set>

namespace palimpsest {
namespace {

using testing::Finished;
using testing::TestFolder;
using Tensors = std::map<std::string, std::vector<float>>;

const std::vector<std::string> kPolicies = {
    "none",
    "full",
    "{policy: every_n, n: 2}",
    "{policy: uniform, segments: 2}",
    "sqrt",
    "{policy: key_layers, recompute: [\"0\"]}",
    "{policy: key_layers, count: 1}",
};

/// All of them for one model and, with PALIMPSEST_FULL=1, for every one; else what keeps all, nothing
/// and some.
std::vector<std::string> policies_of(const std::string& model) {
  if (model == "llama-tiny" || std::getenv("PALIMPSEST_FULL") != nullptr) {
    return kPolicies;
  }
  return {kPolicies.front(), "full", kPolicies.back()};
}

std::filesystem::path model_folder(const std::string& model) {
  return std::filesystem::path(PALIMPSEST_TEST_DATA) / "models" / model;
}

std::string golden_yaml(const std::string& model) {
  return fmt::format(
      R"(model: {{path: {0}, attention_dropout: 0, dropout: 0, embedding_dropout: 0}}
data: {{files: [{0}/golden.safetensors], format: tensors, shuffle: false}}
training: {{steps: 3, global_batch_size: 2, threads: 2}}
optimizer:
  name: adamw
  learning_rate: 1e-3
  betas: [0.9, 0.95]
  eps: 1e-8
  weight_decay: 0.1
  max_grad_norm: 1.0
)",
      model_folder(model).string());
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

double norm(const std::vector<float>& values) {
  double sum = 0;
  for (const float value : values) {
    sum += static_cast<double>(value) * value;
  }
  return std::sqrt(sum);
}

/// The golden tensors whose names begin with `prefix`, without it.
Tensors part(const Tensors& golden, const std::string& prefix) {
  Tensors found;
  for (const auto& [name, values] : golden) {
    if (name.starts_with(prefix)) {
      found[name.substr(prefix.size())] = values;
    }
  }
  EXPECT_FALSE(found.empty()) << prefix;
  return found;
}

std::set<std::string> names(const Tensors& tensors) {
  std::set<std::string> found;
  for (const auto& [name, values] : tensors) {
    found.insert(name);
  }
  return found;
}

void expect_losses_and_norms(const Finished& found, const Tensors& golden, double tolerance) {
  ASSERT_EQ(found.records.all.size(), 3);
  for (size_t step = 0; step < 3; ++step) {
    const double loss = golden.at("losses")[step];
    const double grad_norm = golden.at("grad_norms")[step];
    EXPECT_NEAR(found.records.losses()[step], loss, tolerance * loss);
    EXPECT_NEAR(found.records.norms()[step], grad_norm, tolerance * grad_norm);
  }
}

void expect_gradients(const Finished& found, const Tensors& golden) {
  const Tensors expected = part(golden, "grad.");
  ASSERT_EQ(names(found.gradients), names(expected));
  for (const auto& [name, gradient] : found.gradients) {
    ASSERT_EQ(gradient.size(), expected.at(name).size()) << name;
    EXPECT_LE(relative_difference(gradient, expected.at(name)), 1e-5) << name;
  }
}

/// At most 0.5 % of all parameters differ by more than 1e-5, none by more than 2 x rate x steps.
void expect_parameters(const Tensors& found, const Tensors& golden) {
  const Tensors expected = part(golden, "step3.");
  ASSERT_EQ(names(found), names(expected));
  size_t compared = 0;
  size_t different = 0;
  for (const auto& [name, values] : expected) {
    ASSERT_EQ(found.at(name).size(), values.size()) << name;
    for (size_t index = 0; index < values.size(); ++index) {
      const double difference = std::abs(found.at(name)[index] - values[index]);
      EXPECT_LE(difference, 2 * 1e-3 * 3) << name;
      different += difference > 1e-5 ? 1 : 0;
    }
    compared += values.size();
  }
  EXPECT_LE(different, compared / 200);
}

class Golden : public ::testing::TestWithParam<const char*> {
 protected:
  Tensors golden() const {
    return testing::floats(model_folder(GetParam()) / "golden.safetensors");
  }
};

TEST_P(Golden, TrainsAsTheReferenceUnderEveryPolicyAndTape) {
  const TestFolder folder;
  const Tensors expected = golden();
  for (const int micro : {2, 1}) {
    std::optional<Finished> first;
    for (const std::string& policy : policies_of(GetParam())) {
      for (const char* tape : {"full", "lean"}) {
        SCOPED_TRACE(fmt::format("micro-batch {}, {}, {}", micro, policy, tape));
        Finished found = testing::train(
            golden_yaml(GetParam()),
            folder,
            {fmt::format("training.micro_batch_size={}", micro),
             "activation_checkpointing=" + policy,
             std::string("activation_checkpointing.tape=") + tape});
        if (first) {
          // Among each other the policies differ in no bit.
          EXPECT_EQ(found.records.losses(), first->records.losses());
          EXPECT_EQ(found.records.norms(), first->records.norms());
          EXPECT_EQ(found.gradients, first->gradients);
          EXPECT_EQ(found.parameters, first->parameters);
          continue;
        }
        expect_losses_and_norms(found, expected, 1e-5);
        expect_gradients(found, expected);
        expect_parameters(found.parameters, expected);
        first = std::move(found);
      }
    }
  }
}

TEST_P(Golden, TrainsAsTheReferenceOnTwoRanksOfEveryStage) {
  const TestFolder folder;
  const Tensors expected = golden();
  for (const int zero : {0, 1, 2, 3}) {
    SCOPED_TRACE(fmt::format("zero {}", zero));
    const Finished found = testing::train_on(
        2,
        golden_yaml(GetParam()),
        folder,
        {"training.micro_batch_size=1",
         "training.threads=1",
         fmt::format("parallel.zero={}", zero)});
    expect_losses_and_norms(found, expected, 1e-5);
    expect_gradients(found, expected);
    expect_parameters(found.parameters, expected);
  }
}

TEST_P(Golden, HasOneProcesssBitsOnRanksWhereItIsReproducible) {
  const TestFolder folder;
  std::vector<std::string> overrides = {
      "training.micro_batch_size=1",
      "training.threads=1",
      "training.reproducible=true",
      "model.attention_dropout=0.1",
      "model.dropout=0.1",
      "model.embedding_dropout=0.1"};
  const Finished plain = testing::train(golden_yaml(GetParam()), folder, overrides);
  const double without = golden().at("losses").front();
  EXPECT_GT(std::abs(plain.records.losses().front() - without), 1e-4 * without); // it drops
  for (const int zero : {1, 2, 3}) {
    SCOPED_TRACE(fmt::format("zero {}", zero));
    std::vector<std::string> all = overrides;
    all.push_back(fmt::format("parallel.zero={}", zero));
    all.push_back(fmt::format("activation_checkpointing={}", zero == 2 ? "none" : "full"));
    all.push_back(fmt::format("activation_checkpointing.tape={}", zero == 3 ? "lean" : "full"));
    const Finished found = testing::train_on(2, golden_yaml(GetParam()), folder, all);
    EXPECT_EQ(found.records.losses(), plain.records.losses());
    EXPECT_EQ(found.records.norms(), plain.records.norms());
    EXPECT_EQ(found.gradients, plain.gradients);
    EXPECT_EQ(found.parameters, plain.parameters);
  }
}

// Near the fp32 reference, not equal to it.
TEST_P(Golden, TrainsNearTheReferenceInNarrowTypes) {
  const TestFolder folder;
  const Tensors expected = golden();
  const Tensors gradients = part(expected, "grad.");
  for (const auto& [precision, policy] :
       {std::pair("bf16", "none"),
        std::pair("bf16", "full"),
        std::pair("{compute: bf16, master: none, moments: bf16, gradients: bf16}", "none"),
        std::pair("fp16", "full"),
        std::pair("{compute: fp16, gradients: bf16, moments: bf16}", "none")}) {
    SCOPED_TRACE(precision);
    SCOPED_TRACE(policy);
    const Finished found = testing::train(
        golden_yaml(GetParam()),
        folder,
        {std::string("precision=") + precision, std::string("activation_checkpointing=") + policy});
    ASSERT_EQ(found.records.all.size(), 3);
    for (size_t step = 0; step < 3; ++step) {
      const double loss = expected.at("losses")[step];
      EXPECT_NEAR(found.records.losses()[step], loss, 5e-3 * loss);
    }
    ASSERT_EQ(names(found.gradients), names(gradients));
    for (const auto& [name, gradient] : found.gradients) {
      // What nearly cancels, as the gradients of keys' biases do, is measured against what cancels.
      const double reference = norm(gradients.at(name));
      EXPECT_NEAR(norm(gradient), reference, 2e-2 * std::max(reference, 0.05)) << name;
    }
  }
}

std::string bytes_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::set<std::string> weight_files(const std::filesystem::path& folder) {
  std::set<std::string> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("model") || name == "config.json") {
      found.insert(name);
    }
  }
  return found;
}

// A learning rate of 0 trains nothing: what goes in comes out, byte for byte.
TEST_P(Golden, ExportsTheFilesThatItImported) {
  const TestFolder folder;
  const std::filesystem::path source = model_folder(GetParam());
  for (const char* compute : {"fp32", "bf16"}) {
    const Finished finished = testing::train(
        golden_yaml(GetParam()),
        folder,
        {"optimizer.learning_rate=0",
         std::string("precision.compute=") + compute,
         "training.steps=1"});
    const std::filesystem::path model = finished.run->output() / "model";
    ASSERT_EQ(weight_files(model), weight_files(source));
    for (const std::string& file : weight_files(source)) {
      EXPECT_EQ(bytes_of(model / file), bytes_of(source / file)) << file;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Golden, ::testing::ValuesIn(kGoldenModels), golden_model_name);

} // namespace
} // namespace palimpsest
