// Covers: core/config/assign.cc core/config/presets.cc
#include <palimpsest/tests/core/config/loading.h>

#include <palimpsest/core/config/presets.h>
#include <palimpsest/core/config/schema.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

double learning_rate(const std::string& text, const std::string& name) {
  return load_config_text(text, name).optimizer().learning_rate();
}

TEST(Loader, ThreeKeysAreEnough) {
  Origins origins;
  const RunConfig config = load_config_text(minimal(), "sorting.yaml", {}, &origins);
  EXPECT_EQ(config.model().hidden_size(), 64);
  EXPECT_THAT(config.data().files(), ElementsAre("corpus.txt"));
  EXPECT_EQ(config.optimizer().learning_rate(), 1e-3);
  EXPECT_THAT(config.optimizer().betas(), ElementsAre(0.9, 0.999));
  EXPECT_EQ(config.training().output(), "runs/sorting");
  EXPECT_EQ(config.data().format(), "text");
  EXPECT_TRUE(config.has_logging()); // every section is there
  EXPECT_FALSE(config.has_lora()); // but those that take effect by it
  EXPECT_EQ(origins.at("optimizer.learning_rate").where, "sorting.yaml:3");
  EXPECT_FALSE(origins.contains("optimizer.eps"));
}

TEST(Loader, JsonMeansTheSame) {
  const std::string text = R"({
    "model": {"preset": "tiny"},
    "data": {"files": ["corpus.txt"]},
    "optimizer": {"learning_rate": 1e-3, "betas": [0.5, 0.75]}
  })";
  Origins origins;
  const RunConfig json = load_config_text(text, "run.json", {}, &origins);
  const RunConfig yaml = load_config_text(text, "run.yaml");
  EXPECT_EQ(json.SerializeAsString(), yaml.SerializeAsString());
  EXPECT_THAT(json.optimizer().betas(), ElementsAre(0.5, 0.75));
  EXPECT_EQ(origins.at("data.files").where, "run.json:3");
}

TEST(Loader, NumbersAreNumbersHoweverTheyAreSpelt) {
  for (const char* number : {"2e-5", "2E-5", "2.0e-5", ".00002", "+2e-5", "0.2e-4"}) {
    const std::string text =
        "model: {preset: tiny}\ndata: {files: [a.txt]}\noptimizer: {learning_rate: " +
        std::string(number) + "}";
    EXPECT_EQ(learning_rate(text, "run.yaml"), 2e-5) << number;
  }
  for (const char* number : {"2e-5", "2E-5", "2.0e-5", "0.00002"}) {
    const std::string text =
        R"({"model": {"preset": "tiny"}, "data": {"files": ["a.txt"]}, "optimizer": {"learning_rate": )" +
        std::string(number) + "}}";
    EXPECT_EQ(learning_rate(text, "run.json"), 2e-5) << number;
  }
}

struct Refused {
  const char* key;
  const char* given;
  const char* allowed;
};

class RefusedValue : public ::testing::TestWithParam<Refused> {};

// In a file and in an override, with the key, what was given and what is allowed.
TEST_P(RefusedValue, NamesKeyGivenAndAllowed) {
  const auto [key, given, allowed] = GetParam();
  const std::string path = key;
  const size_t dot = path.find('.');
  const std::string section = path.substr(0, dot);
  const std::string sections[] = {"model", "data", "optimizer"};
  const std::string known[] = {"preset: tiny", "files: [a.txt]", "learning_rate: 1"};
  std::string text;
  int line = 0;
  for (int i = 0; i < 3; ++i) {
    const bool same_key = known[i].starts_with(path.substr(dot + 1) + ":");
    text += sections[i] + ": {" + (same_key ? "" : known[i]);
    if (sections[i] == section) {
      text += std::string(same_key ? "" : ", ") + path.substr(dot + 1) + ": " + given;
      line = i + 1;
    }
    text += "}\n";
  }
  if (line == 0) {
    text += section + ": {" + path.substr(dot + 1) + ": " + given + "}\n";
    line = 4;
  }
  const auto expected = AllOf(
      HasSubstr(path + ": "),
      HasSubstr(given),
      HasSubstr(allowed),
      Not(HasSubstr("settings are wrong")));
  EXPECT_THAT(refusal(text), AllOf(expected, HasSubstr("run.yaml:" + std::to_string(line) + ": ")));
  EXPECT_THAT(refusal(minimal(), {path + "=" + given}), expected);
}

INSTANTIATE_TEST_SUITE_P(
    Values,
    RefusedValue,
    ::testing::Values(
        Refused{
            "optimizer.learning_rate",
            "\"2e-5\"",
            "a number of at least 0 (numbers, true and false stand without"},
        Refused{"optimizer.learning_rate", "nan", "a number"},
        Refused{"optimizer.learning_rate", ".nan", "a number"},
        Refused{"optimizer.learning_rate", "NaN", "a number"},
        Refused{"optimizer.learning_rate", "Infinity", "a number"},
        Refused{"optimizer.learning_rate", ".inf", "a number"},
        Refused{"optimizer.learning_rate", "-inf", "a number"},
        Refused{"optimizer.learning_rate", "1e400", "a number"},
        Refused{"optimizer.learning_rate", "true", "a number"},
        Refused{"optimizer.learning_rate", "-1e-5", "a number of at least 0"},
        Refused{"optimizer.learning_rate", "1e-5x", "a number"},
        Refused{"optimizer.learning_rate", "0x10", "a number"},
        Refused{"optimizer.learning_rate", "1_000", "a number"},
        Refused{"optimizer.eps", "0", "a number above 0"},
        Refused{"optimizer.name", "adam", "(did you mean adamw?); give adamw, sgd"},
        Refused{"training.steps", "1.5", "an integer from 1 to"},
        Refused{"training.steps", "2.0", "an integer from 1 to"},
        Refused{"training.steps", "1e3", "an integer from 1 to"},
        Refused{"training.steps", "true", "an integer from 1 to"},
        Refused{"training.steps", "0", "an integer from 1 to"},
        Refused{"training.steps", "-1", "an integer from 1 to"},
        Refused{"training.steps", "010", "an integer from 1 to"},
        Refused{"training.steps", "99999999999999999999", "an integer from 1 to"},
        Refused{"training.steps", "\"3\"", "an integer from 1 to"},
        Refused{"training.seed", "99999999999999999999", "an integer of at least 0"},
        Refused{
            "training.micro_batch_size",
            "automatic",
            "an integer from 1 to 2147483647, or auto"},
        Refused{"training.reproducible", "\"yes\"", "true or false"},
        Refused{"training.reproducible", "yes", "true or false"},
        Refused{"training.reproducible", "1", "true or false"},
        Refused{"training.reproducible", "\"true\"", "true or false"},
        Refused{"memory.device_budget", "8GiBs", "a size of at least 1: bytes such as 4096, or"},
        Refused{"memory.device_budget", "-8GiB", "with a unit such as 500 MB or 8GiB"},
        Refused{"memory.device_budget", "8 gb", "(kB, MB, GB, TB are powers of 1000; KiB, MiB,"},
        Refused{"memory.device_budget", "0", "GiB, TiB of 1024), or auto"},
        Refused{"parallel.prefetch", "1e9", "a size of at least 0: bytes such as 4096"},
        Refused{"parallel.zero", "4", "an integer from 0 to 3, or shard_grad_op for 2"},
        Refused{"scheduler.warmup_ratio", "1.01", "a number from 0 to 1"},
        Refused{"model.dropout", "1", "a number of at least 0 and below 1"}));

TEST(Loader, NumbersThatJsonCannotSayNameTheKey) {
  for (const char* number : {"NaN", "Infinity", "1e400", ".5", "01"}) {
    const std::string text = "{\"optimizer\": {\n\"learning_rate\": " + std::string(number) + "}}";
    EXPECT_THAT(
        refusal(text, {}, "run.json"),
        AllOf(HasSubstr("run.json:2: optimizer"), HasSubstr("not valid JSON")))
        << number;
  }
  EXPECT_THAT(
      refusal(R"({"training": {"steps": 99999999999999999999}})", {}, "run.json"),
      HasSubstr("run.json:1: training.steps: 99999999999999999999 is not allowed"));
}

TEST(Loader, TextIsNotGuessedFromNumbers) {
  EXPECT_THAT(refusal(minimal("training: {output: 2024}")), HasSubstr("needs quotes to be text"));
  EXPECT_THAT(refusal(minimal("training: {output: true}")), HasSubstr("needs quotes to be text"));
  EXPECT_THAT(refusal(minimal("training: {output: ''}")), HasSubstr("training.output"));
  EXPECT_EQ(
      load_config_text(minimal("training: {output: '2024'}"), "r.yaml").training().output(),
      "2024");
  // The shell takes quotes away, so a word of the command line is text where text is wanted.
  EXPECT_EQ(
      load_config_text(minimal(), "r.yaml", {"training.output=2024"}).training().output(), "2024");
}

TEST(Loader, WordsStandForNumbersSectionsAndLists) {
  EXPECT_THAT(
      refusal(minimal("parallel: {zero: hybrid_shard}")), HasSubstr("hybrid_shard, which needs"));
  const RunConfig config = load_config_text(
      minimal("activation_checkpointing: sqrt\nprecision: bf16\n"
              "training: {micro_batch_size: auto}"),
      "run.yaml");
  EXPECT_EQ(config.activation_checkpointing().policy(), "sqrt");
  EXPECT_EQ(config.precision().compute(), "bf16");
  EXPECT_FALSE(config.training().has_micro_batch_size());
  const RunConfig layers = load_config_text(
      minimal("activation_checkpointing: {policy: key_layers, recompute: [0, 'layers.[12]', mlp]}"),
      "run.yaml");
  EXPECT_THAT(
      layers.activation_checkpointing().recompute(), ElementsAre("0", "layers.[12]", "mlp"));
  EXPECT_THAT(
      load_config_text(minimal(), "run.yaml", {"data.files=other.txt"}).data().files(),
      ElementsAre("other.txt"));
}

TEST(Loader, UnknownKeysNameTheNearestAtEachDepth) {
  EXPECT_THAT(
      refusal(minimal("\noptimiser: {}")),
      HasSubstr("run.yaml:5: optimiser: unknown key (did you mean optimizer?)"));
  EXPECT_THAT(
      refusal(minimal("training:\n  seed: 1\n  epoch: 3\n")),
      HasSubstr("run.yaml:6: training.epoch: unknown key (did you mean epochs?)"));
  EXPECT_THAT(
      refusal("model:\n  family: llama\n  rope_scaling:\n    rope_typ: yarn\n"),
      HasSubstr("run.yaml:4: model.rope_scaling.rope_typ: unknown key (did you mean rope_type?)"));
  EXPECT_THAT(
      refusal("optimizer:\n  groups:\n  - match: bias\n    weight_decai: 0\n"),
      HasSubstr("run.yaml:4: optimizer.groups[0].weight_decai: unknown key (did you mean "
                "weight_decay?)"));
  EXPECT_THAT(
      refusal(minimal("logging: {zzzzzzzzz: 1}")),
      HasSubstr("logging.zzzzzzzzz: unknown key; allowed: every, quiet, tensorboard, hardware"));
  // A key in the wrong section belongs where one of its name is.
  EXPECT_THAT(
      refusal(minimal(), {"steps=3"}),
      HasSubstr(": steps: unknown key (did you mean training.steps?)"));
  EXPECT_THAT(
      refusal(minimal(), {"training.learning_rate=3"}),
      HasSubstr("unknown key (did you mean optimizer.learning_rate?)"));
  EXPECT_THAT(
      refusal(minimal(), {"data.name=3"}),
      HasSubstr("unknown key (did you mean optimizer.name or scheduler.name?)"));
}

TEST(Loader, WrongShapesAreRefused) {
  EXPECT_THAT(
      refusal(minimal("training: 3")), HasSubstr("training: 3 is not allowed; give a section"));
  EXPECT_THAT(refusal(minimal("training: [3]")), HasSubstr("training: a list is not allowed"));
  EXPECT_THAT(
      refusal(minimal("training: {seed: {a: 1}}")), HasSubstr("training.seed: a section is"));
  EXPECT_THAT(refusal(minimal("training: {seed: [1]}")), HasSubstr("training.seed: a list is"));
  EXPECT_THAT(
      refusal(minimal("training: {seed: }")), HasSubstr("training.seed: no value is given"));
  EXPECT_THAT(refusal(minimal("training:")), HasSubstr("training: no value is given"));
  EXPECT_THAT(refusal(minimal("training: {seed: null}")), HasSubstr("training.seed: no value"));
  const std::string base = "model: {preset: tiny}\ndata: {files: [a.txt]}\n";
  EXPECT_THAT(
      refusal(base + "optimizer: {learning_rate: 1, betas: 0.9}"),
      HasSubstr("give a list of 2, each"));
  EXPECT_THAT(
      refusal(base + "optimizer: {learning_rate: 1, betas: [0.9]}"),
      HasSubstr("optimizer.betas: a list of 1 is not allowed; give a list of 2"));
  EXPECT_THAT(
      refusal(base + "optimizer: {learning_rate: 1, betas: [0.9, 1.0]}"),
      HasSubstr("optimizer.betas[1]: 1.0 is not allowed"));
  EXPECT_THAT(
      refusal(base + "optimizer: {learning_rate: 1, groups: [x]}"),
      HasSubstr("optimizer.groups[0]: x is not allowed"));
  EXPECT_THAT(
      refusal(base + "optimizer: {learning_rate: 1, groups: [{weight_decay: 0}]}"),
      HasSubstr("optimizer.groups[0].match is missing"));
}

TEST(Loader, ListsAllProblemsAtOnce) {
  const std::string message = refusal(
      "model: {preset: tiny}\n"
      "data: {files: [a.txt], packin: true}\n"
      "training: {steps: 1.5, seed: -1, seed: 2}\n");
  EXPECT_THAT(
      message,
      AllOf(
          HasSubstr("run.yaml: 5 settings are wrong:"),
          HasSubstr("run.yaml:2: data.packin: unknown key (did you mean packing?)"),
          HasSubstr("run.yaml:3: training.steps: 1.5 is not allowed"),
          HasSubstr("run.yaml:3: training.seed: -1 is not allowed"),
          HasSubstr("run.yaml:3: training.seed: the key appears twice"),
          HasSubstr("optimizer.learning_rate is missing")));
}

TEST(Loader, OverridesWinAndCanTakeBack) {
  Origins origins;
  const std::string text =
      minimal("training: {epochs: 3, seed: 7}\nactivation_checkpointing: sqrt\n");
  const RunConfig config = load_config_text(
      text,
      "run.yaml",
      {"training.epochs=null",
       "training.steps=20",
       "optimizer.betas=[0.8, 0.9]",
       "optimizer.groups=[{match: bias, weight_decay: 0}]",
       "activation_checkpointing.tape=lean"},
      &origins);
  EXPECT_FALSE(config.training().has_epochs());
  EXPECT_EQ(config.training().steps(), 20);
  EXPECT_EQ(config.training().seed(), 7);
  EXPECT_THAT(config.optimizer().betas(), ElementsAre(0.8, 0.9));
  EXPECT_EQ(config.optimizer().groups(0).match(), "bias");
  EXPECT_EQ(config.activation_checkpointing().policy(), "sqrt");
  EXPECT_EQ(config.activation_checkpointing().tape(), "lean");
  EXPECT_FALSE(origins.contains("training.epochs"));
  EXPECT_EQ(origins.at("training.steps").where, "override training.steps=20");
}

TEST(Loader, MalformedOverridesAreRefused) {
  for (const char* text : {"training.steps", "=3", "training.steps=", "", "="}) {
    EXPECT_THAT(refusal(minimal(), {text}), HasSubstr("an override reads key=value")) << text;
  }
  EXPECT_THAT(
      refusal(minimal(), {"training.seed=1", "training.seed=2"}), HasSubstr("overridden twice"));
  EXPECT_THAT(refusal(minimal(), {"training.seed.x=1"}), HasSubstr("training.seed: a section is"));
  EXPECT_THAT(refusal(minimal(), {"optimizer.betas=[0.9"}), HasSubstr("bracket not closed"));
  EXPECT_THAT(refusal(minimal(), {"..=1"}), HasSubstr("unknown key"));
  EXPECT_THAT(refusal(minimal(), {std::string(100000, '.') + "=1"}), HasSubstr("unknown key"));
}

TEST(Loader, PresetsAreTheBaseOfWhatIsGivenBesideThem) {
  Origins origins;
  const RunConfig config = load_config_text(
      minimal(), "run.yaml", {"model.preset=bench-30m", "model.num_hidden_layers=2"}, &origins);
  EXPECT_EQ(config.model().hidden_size(), 512);
  EXPECT_EQ(config.model().num_hidden_layers(), 2);
  EXPECT_EQ(config.model().num_attention_heads(), 8);
  EXPECT_EQ(config.model().num_key_value_heads(), 4);
  EXPECT_EQ(config.model().head_dim(), 64);
  EXPECT_EQ(config.model().intermediate_size(), 1408);
  EXPECT_EQ(config.model().vocab_size(), 8192);
  EXPECT_FALSE(config.model().tie_word_embeddings());
  EXPECT_EQ(origins.at("model.hidden_size").where, "preset bench-30m");
}

TEST(Loader, EveryPresetLoadsAndTheSchemaKnowsIt) {
  const auto& field = *RunConfig::Model::descriptor()->FindFieldByName("preset");
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    names.emplace_back(preset.name);
    EXPECT_EQ(refusal(minimal(), {std::string("model.preset=") + preset.name}), "");
  }
  EXPECT_THAT(names, ::testing::ElementsAreArray(options_of(field).allowed()));
}

TEST(Loader, FilesThatAreNoConfigAreRefused) {
  const std::filesystem::path folder = make_temporary_folder();
  const auto message = [](const std::filesystem::path& path) {
    try {
      load_config(path);
      return std::string();
    } catch (const UserError& error) {
      return std::string(error.what());
    }
  };
  EXPECT_THAT(message(folder / "missing.yaml"), HasSubstr("cannot be read: No such file"));
  EXPECT_THAT(message(folder), HasSubstr("is a folder"));
  std::ofstream(folder / "big.yaml") << std::string((1 << 20) + 1, 'a');
  EXPECT_THAT(message(folder / "big.yaml"), HasSubstr("longer than 1 MiB"));
  std::ofstream(folder / "good.yaml") << minimal();
  EXPECT_EQ(message(folder / "good.yaml"), "");
  std::filesystem::remove_all(folder);
}

} // namespace
} // namespace palimpsest
