#pragma once

// Runs made from YAML in a folder of their own.

#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/launcher/compose/run.h>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

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

/// F32 tensors of a file by name.
inline std::map<std::string, std::vector<float>> floats(const std::filesystem::path& path) {
  const SafetensorsFile file(path);
  std::map<std::string, std::vector<float>> found;
  for (const StoredTensor& tensor : file.tensors()) {
    if (tensor.dtype == StoredDtype::F32) {
      std::vector<float>& values = found[tensor.name];
      values.resize(static_cast<size_t>(tensor.elements()));
      std::memcpy(values.data(), file.bytes(tensor).data(), file.bytes(tensor).size());
    }
  }
  return found;
}

/// What a run leaves: records, fp32 parameters by name, gradients of the first step.
struct Finished {
  Records records;
  std::map<std::string, std::vector<float>> parameters;
  std::map<std::string, std::vector<float>> gradients;
  std::unique_ptr<Run> run;
};

/// Trains `yaml` into `folder`.
inline Finished train(
    const std::string& yaml,
    const TestFolder& folder,
    const std::vector<std::string>& overrides = {}) {
  Finished finished;
  const std::string output = folder / "run";
  std::filesystem::remove_all(output);
  std::vector<std::string> all = overrides;
  all.push_back("training.output=" + output);
  finished.run = std::make_unique<Run>(load_config_text(yaml, "test.yaml", all));
  finished.run->dump_gradients(folder / "gradients.safetensors");
  finished.run->prepare();
  finished.run->train({&finished.records});
  finished.run->write_model();
  const UnitSource source = finished.run->parameters();
  const Chain& chain = finished.run->model().chain();
  for (size_t unit = 0; unit < chain.units.size(); ++unit) {
    const at::Tensor values = source(static_cast<int>(unit)).values;
    for (const Parameter& parameter : chain.units[unit]->parameters()) {
      const float* begin = values.const_data_ptr<float>() + parameter.offset;
      finished.parameters[parameter.name].assign(begin, begin + parameter.numel);
    }
  }
  finished.gradients = floats(folder / "gradients.safetensors");
  return finished;
}

} // namespace palimpsest::testing
