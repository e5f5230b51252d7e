#pragma once

// Runs made from YAML in a folder of their own.

#include <palimpsest/core/config/loader.h>
#include <palimpsest/launcher/compose/run.h>
#include <palimpsest/tests/support/files/tensors.h>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest::testing {

/// A folder that goes with the test.
class TestFolder {
 public:
  TestFolder() {
    const auto* info = ::testing::UnitTest::GetInstance()->current_test_info();
    std::string name = std::string(info->test_suite_name()) + "-" + info->name();
    for (char& c : name) {
      c = c == '/' ? '-' : c;
    }
    path_ = std::filesystem::temp_directory_path() /
        ("palimpsest-" + std::to_string(getpid()) + "-" + name);
    std::filesystem::remove_all(path_);
    std::filesystem::create_directories(path_);
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() {
    std::filesystem::remove_all(path_);
  }
  std::string operator/(const std::string& name) const {
    return (path_ / name).string();
  }

 private:
  std::filesystem::path path_;
};

class Records final : public Observer {
 public:
  void step_end(const StepRecord& record) override {
    all.push_back(record);
  }
  std::vector<double> losses() const {
    std::vector<double> values;
    for (const StepRecord& record : all) {
      values.push_back(record.loss);
    }
    return values;
  }
  std::vector<double> norms() const {
    std::vector<double> values;
    for (const StepRecord& record : all) {
      values.push_back(record.grad_norm);
    }
    return values;
  }
  std::vector<StepRecord> all;
};

/// What a run leaves: records, parameters by name, gradients of the first step.
struct Finished {
  Records records;
  std::map<std::string, std::vector<float>> parameters;
  std::map<std::string, std::vector<float>> gradients;
  std::unique_ptr<Run> run;
};

/// In which types the matrices of runs are tried, as values of `precision`: one for each kind of
/// state and of rounding.
inline const std::vector<std::string> kPrecisions = {
    "fp32",
    "bf16",
    "{compute: bf16, master: none, moments: bf16, gradients: bf16}",
    "{compute: fp16, moments: bf16, loss_scaling: {initial: 1024, growth_interval: 2}}",
};

/// What the matrices of runs train, as overrides: the whole model, or adapters of some layers.
inline const std::vector<std::vector<std::string>> kTrained = {
    {},
    {"lora={rank: 3, alpha: 6, dropout: 0.1, target_modules: [k_proj, v_proj, down_proj]}"},
};

/// Adds the part of the parameters that a run's rank holds: masters where there are any.
inline void add_parameters(Run& run, std::map<std::string, std::vector<float>>& parameters) {
  const UnitSource source = run.parameters();
  const Chain& chain = run.model().chain();
  for (size_t unit = 0; unit < chain.units.size(); ++unit) {
    const UnitValues held = source(static_cast<int>(unit));
    const at::Tensor wide = numbers_in(*chain.units[unit], held.values).to(at::kFloat);
    const float* values = wide.const_data_ptr<float>();
    for (const Parameter& parameter : chain.units[unit]->parameters()) {
      std::vector<float>& whole = parameters[parameter.name];
      whole.resize(static_cast<size_t>(parameter.numel));
      const int64_t first = std::max(parameter.offset, held.begin);
      const int64_t last = std::min(parameter.offset + parameter.numel, held.begin + wide.numel());
      for (int64_t element = first; element < last; ++element) {
        whole[static_cast<size_t>(element - parameter.offset)] = values[element - held.begin];
      }
    }
  }
}

inline RunConfig run_config(
    const std::string& yaml,
    const TestFolder& folder,
    std::vector<std::string> overrides) {
  overrides.push_back("training.output=" + (folder / "run"));
  return load_config_text(yaml, "test.yaml", overrides);
}

/// Trains `yaml` into `folder`, anew.
inline Finished train(
    const std::string& yaml,
    const TestFolder& folder,
    const std::vector<std::string>& overrides = {}) {
  Finished finished;
  std::filesystem::remove_all(folder / "run");
  finished.run = std::make_unique<Run>(run_config(yaml, folder, overrides));
  finished.run->dump_gradients(folder / "gradients.safetensors");
  finished.run->prepare();
  finished.run->train({&finished.records});
  finished.run->write_model();
  add_parameters(*finished.run, finished.parameters);
  finished.gradients = floats(folder / "gradients.safetensors");
  return finished;
}

} // namespace palimpsest::testing
