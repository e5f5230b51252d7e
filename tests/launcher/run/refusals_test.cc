// Runs that end before their first step, or without a model, with a sentence that says why.

#include <palimpsest/launcher/compose/run.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/tests/launcher/run/run_testing.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <functional>

namespace palimpsest::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kModel =
    "model: {family: llama, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 2, "
    "intermediate_size: 24, vocab_size: 256}\n"
    "training: {steps: 1, micro_batch_size: 2, threads: 1}\n"
    "optimizer: {learning_rate: 0.01}\n";

template <typename Failure>
std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Failure& failure) {
    return failure.what();
  }
  return "nothing was refused";
}

class Refusals : public ::testing::Test {
 protected:
  Refusals() {
    write_file_atomically(folder_ / "data.txt", std::string(256, 'x'));
  }
  std::unique_ptr<palimpsest::Run> open(std::vector<std::string> overrides = {}) {
    overrides.push_back("training.output=" + folder_ / "run");
    const std::string data = "data: {files: [" + (folder_ / "data.txt") + "], sequence_length: 16}";
    return std::make_unique<palimpsest::Run>(
        load_config_text(kModel + data, "test.yaml", overrides));
  }
  TestFolder folder_;
};

TEST_F(Refusals, AModelOfAnotherOriginIsNotReplaced) {
  const fs::path model = folder_ / "run/model";
  fs::create_directories(model);
  EXPECT_THAT(
      message_of<UserError>([&] { open()->prepare(); }),
      AllOf(HasSubstr("training.output"), HasSubstr("training.restart=true")));
  open({"training.restart=true"})->prepare();
}

TEST_F(Refusals, AFileInThePlaceOfTheModelIsKnownBeforeTheFirstStep) {
  fs::create_directories(folder_ / "run");
  for (const std::string name : {"model", "best"}) {
    write_file_atomically(folder_ / ("run/" + name), "mine");
    EXPECT_THAT(
        message_of<UserError>([&] { open({"training.restart=true"})->prepare(); }),
        AllOf(HasSubstr("run/" + name + " is a file"), HasSubstr("remove it")));
    EXPECT_EQ(read_file(folder_ / ("run/" + name)), "mine");
    fs::remove(folder_ / ("run/" + name));
  }
}

// The data would be refused too, but only once they are read.
TEST_F(Refusals, UnknownHardwareIsKnownBeforeAnythingLong) {
  EXPECT_THAT(
      message_of<UserError>([&] {
        open({"logging.hardware=abacus", "data.files=[/nowhere/data.txt]"});
      }),
      HasSubstr("logging.hardware: 'abacus' is neither a file nor one of"));
}

TEST_F(Refusals, AnEmptyFileIsToldByTheKeyThatNamesIt) {
  const std::string empty = folder_ / "empty.txt";
  write_file_atomically(empty, "");
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"data.files", "data.files=[" + empty + "]"},
           {"data.validation.files", "data.validation={files: [" + empty + "]}"}}) {
    EXPECT_EQ(message_of<UserError>([&] { open({value}); }), key + ": " + empty + " is empty");
  }
  EXPECT_EQ(
      message_of<UserError>([&] {
        open({"data.files=null", "data.sources=[{path: " + empty + "}]"});
      }),
      "data.sources: " + empty + " is empty");
}

// The model would be refused too, but only once it is opened.
TEST_F(Refusals, TheFoldersRulesComeBeforeAnythingLong) {
  fs::create_directories(folder_ / "run/model");
  const std::string data = "data: {files: [" + (folder_ / "data.txt") + "], sequence_length: 16}\n";
  const auto open_missing = [&](const std::string& output) {
    palimpsest::Run run(load_config_text(
        "model: {path: " + (folder_ / "none") + "}\n" + data + "optimizer: {learning_rate: 1}\n",
        "test.yaml",
        {"training.output=" + output}));
  };
  EXPECT_THAT(
      message_of<UserError>([&] { open_missing(folder_ / "run"); }),
      HasSubstr("training.restart=true"));
  EXPECT_THAT(
      message_of<UserError>([&] { open_missing(folder_ / "data.txt"); }),
      HasSubstr("training.output: " + (folder_ / "data.txt") + " is a file"));
  EXPECT_THAT(message_of<UserError>([&] { open_missing(folder_ / "new"); }), HasSubstr("none"));
  EXPECT_FALSE(fs::exists(folder_ / "new"));
}

TEST_F(Refusals, AnUnusableOutputIsTheEnvironments) {
  const std::string longest = "training.output=" + (folder_ / std::string(300, 'd'));
  const std::string yaml =
      std::string(kModel) + "data: {files: [" + (folder_ / "data.txt") + "], sequence_length: 16}";
  EXPECT_THAT(
      message_of<EnvironmentError>(
          [&] { palimpsest::Run(load_config_text(yaml, "test.yaml", {longest})).prepare(); }),
      HasSubstr("File name too long"));
}

TEST_F(Refusals, AnUnwritableGradientFileIsKnownBeforeTheFirstStep) {
  const auto run = open();
  EXPECT_THAT(
      message_of<EnvironmentError>([&] { run->dump_gradients(folder_ / "none/g.safetensors"); }),
      HasSubstr("none/g.safetensors"));
}

TEST_F(Refusals, ASequenceLongerThanTheModelIsMadeFor) {
  // The config alone does not tell a folder's positions, nor a tensors file's length.
  std::vector<int64_t> ids(64, 1);
  SafetensorsWriter writer(
      folder_ / "long.safetensors",
      {{"input_ids", StoredDtype::I64, {2, 32}}, {"labels", StoredDtype::I64, {2, 32}}});
  for (const StoredTensor& tensor : writer.tensors()) {
    writer.write(tensor.name, std::as_bytes(std::span(ids)));
  }
  writer.commit();
  const std::string yaml =
      std::string(kModel) + "data: {files: [" + (folder_ / "long.safetensors") + "]}";
  const std::vector<std::string> overrides = {
      "model.max_position_embeddings=31", "training.output=" + folder_ / "run"};
  EXPECT_THAT(
      message_of<UserError>(
          [&] { palimpsest::Run(load_config_text(yaml, "test.yaml", overrides)); }),
      AllOf(HasSubstr("32 tokens"), HasSubstr("max_position_embeddings is 31")));
  std::vector<std::string> dynamic = overrides;
  dynamic.push_back("model.rope_scaling={rope_type: dynamic, factor: 2}");
  palimpsest::Run(load_config_text(yaml, "test.yaml", dynamic)); // it stretches to any length
}

TEST_F(Refusals, MoreMemoryThanTheMachineHas) {
  EXPECT_THAT(
      message_of<EnvironmentError>([&] {
        open({"model.vocab_size=100000000", "model.hidden_size=100000"});
      }),
      AllOf(HasSubstr("out of memory"), HasSubstr("are available")));
}

} // namespace
} // namespace palimpsest::testing
