// Covers: launcher/compose/evaluation_target.cc
// Covers: launcher/compose/trained_state.cc

#include <palimpsest/launcher/cli/eval_verb.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/launcher/compose/evaluation_target.h>
#include <palimpsest/launcher/compose/rank_session.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <fstream>

namespace palimpsest {
namespace {

using nlohmann::json;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using testing::run;
using ::testing::ThrowsMessage;

class EvalVerb : public testing::ProgramFixture {
 protected:
  void SetUp() override {
    ProgramFixture::SetUp();
    std::string text;
    for (int i = 0; i < 33 * 20; ++i) {
      text += static_cast<char>('a' + i * i % 17);
    }
    std::ofstream(folder_ / "corpus.txt") << text;
    write_config("{fraction: 0.25}");
  }
  void write_config(const std::string& validation) const {
    std::ofstream(file("run.yaml")) << fmt::format(
        "model: {{preset: tiny}}\n"
        "data: {{files: [{}], sequence_length: 32, validation: {}}}\n"
        "training: {{global_batch_size: 4, micro_batch_size: 2, threads: 1, output: {}}}\n"
        "optimizer: {{learning_rate: 1e-2}}\n"
        "evaluation: {{every: 2}}\n",
        file("corpus.txt"),
        validation,
        file("out"));
  }
  std::string file(const std::string& name) const {
    return (folder_ / name).string();
  }
  /// The records of evaluations that the training wrote.
  std::vector<json> evaluations() const {
    std::ifstream metrics(file("out/metrics.jsonl"));
    std::vector<json> found;
    for (std::string line; std::getline(metrics, line);) {
      const json record = json::parse(line);
      if (record.contains("eval_loss")) {
        found.push_back(record);
      }
    }
    return found;
  }
  json evaluate(std::vector<std::string> arguments) const {
    arguments.insert(arguments.begin(), "eval");
    arguments.insert(arguments.end(), {"--json", file("loss.json")});
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 0) << outcome.err;
    return outcome.exit_code == 0 ? json::parse(read_file(file("loss.json"))) : json();
  }
};

TEST_F(EvalVerb, GivesWhatTheRunMeasuredOfItsModelItsBestOneAndItsCheckpoint) {
  const Outcome trained = run({"train", file("run.yaml")});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  EXPECT_THAT(trained.out, HasSubstr("evaluation"));
  EXPECT_THAT(trained.out, HasSubstr("best model: " + file("out/best")));
  const std::vector<json> measured = evaluations();
  ASSERT_EQ(measured.size(), 2U); // after 2 steps of 4, and the last
  const json& last = measured.back();
  const json found = evaluate({file("run.yaml")});
  EXPECT_EQ(found["loss"], last["eval_loss"]);
  EXPECT_DOUBLE_EQ(found["perplexity"].get<double>(), std::exp(found["loss"].get<double>()));
  EXPECT_EQ(found["targets"], last["eval_targets"]);
  EXPECT_EQ(found["samples"], 5);
  EXPECT_EQ(found["model"], file("out/model"));
  const json& best = measured[0]["best"] && !measured[1]["best"] ? measured[0] : measured[1];
  EXPECT_EQ(evaluate({file("run.yaml"), "--model", file("out/best")})["loss"], best["eval_loss"]);
  for (const std::vector<std::string>& arguments :
       {std::vector<std::string>{file("out")},
        {file("out/step-00000004")},
        {file("run.yaml"), "--checkpoint", file("out/step-00000004")}}) {
    const json saved = evaluate(arguments);
    EXPECT_EQ(saved["loss"], last["eval_loss"]);
    EXPECT_EQ(saved["step"], 4);
    EXPECT_EQ(saved["model"], file("out/step-00000004"));
  }
}

// A run that went on from its end and was killed has checkpoints that are newer than its model.
TEST_F(EvalVerb, TakesTheNewestStateAndSaysWhich) {
  namespace fs = std::filesystem;
  const std::string saving = "checkpoint.save_every=2";
  ASSERT_EQ(run({"train", file("run.yaml"), saving, "--quiet"}).exit_code, 0);
  EXPECT_EQ(evaluate({file("run.yaml")})["model"], file("out/model"));
  const auto earlier = fs::last_write_time(file("out/step-00000004")) - std::chrono::hours(1);
  fs::last_write_time(file("out/model"), earlier);
  const json newest = evaluate({file("run.yaml")});
  EXPECT_EQ(newest["model"], file("out/step-00000004"));
  EXPECT_EQ(newest["step"], 4);
  const Outcome told = run({"eval", file("run.yaml"), "precision.compute=bf16"});
  ASSERT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(
      told.out,
      AllOf(
          HasSubstr(
              "note        " + file("out/step-00000004") + " is newer than " + file("out/model")),
          ContainsRegex("parameters, 4 layers, bf16\n"), // there is no master
          Not(HasSubstr("master"))));
  fs::remove_all(file("out/model"));
  EXPECT_EQ(evaluate({file("run.yaml")})["model"], file("out/step-00000004"));
}

// What the run's own files need has no use for others.
TEST_F(EvalVerb, PlainTextNeedsNoTemplate) {
  const std::string model = PALIMPSEST_TEST_DATA "/models/llama-tiny";
  std::ofstream(file("chat.yaml")) << fmt::format(
      "model: {{path: {}}}\n"
      "data: {{files: [gone.jsonl], tokenizer: {}, chat_template: chatml, loss_on: last, "
      "sequence_length: 32, validation: {{fraction: 0.1}}}}\n"
      "training: {{threads: 1, output: {}}}\n"
      "optimizer: {{learning_rate: 1e-2}}\n",
      model,
      PALIMPSEST_TEST_DATA "/tokenizers/llama2-512",
      file("out"));
  const Outcome told =
      run({"eval", file("chat.yaml"), "--model", model, "--data", file("corpus.txt")});
  ASSERT_EQ(told.exit_code, 0) << told.err;
  EXPECT_THAT(told.out, HasSubstr("note        data.chat_template has no use here: no file holds"));
  EXPECT_THAT(told.out, HasSubstr("perplexity"));
}

TEST_F(EvalVerb, TakesFilesForAModelWithoutAConfig) {
  std::ofstream(file("held-out.txt")) << std::string(33 * 3, 'b');
  write_config(fmt::format("{{files: [{}]}}", file("held-out.txt")));
  ASSERT_EQ(run({"train", file("run.yaml"), "evaluation=null"}).exit_code, 0);
  const json last = evaluations().back();
  std::filesystem::remove(file("corpus.txt")); // what was trained on is not needed
  EXPECT_EQ(evaluate({file("run.yaml")})["loss"], last["eval_loss"]);
  const std::vector<std::string> data = {"--data", file("held-out.txt")};
  const json bare = evaluate(
      {file("out/model"), "data.sequence_length=32", "training.threads=1", data[0], data[1]});
  EXPECT_EQ(bare["targets"], last["eval_targets"]);
  EXPECT_NEAR(
      bare["loss"].get<double>(),
      last["eval_loss"].get<double>(),
      1e-5); // in larger micro-batches
  const json one = evaluate({file("run.yaml"), data[0], data[1], "--samples", "1"});
  EXPECT_EQ(one["samples"], 1);
  EXPECT_EQ(one["targets"], 31);
}

TEST_F(EvalVerb, SaysWhatIsMissing) {
  const auto refused = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "eval");
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.exit_code, 2);
    return outcome.err;
  };
  EXPECT_THAT(
      refused({file("run.yaml")}), AllOf(HasSubstr(file("out")), HasSubstr("no trained model")));
  EXPECT_THAT(refused({"no/such-model"}), HasSubstr("hf download no/such-model"));
  EXPECT_THAT(refused({"runs/none"}), HasSubstr("eval: runs/none is not there; give a config"));
  EXPECT_THAT(
      refused({file("run.yaml"), "--model", "a", "--checkpoint", "b"}),
      HasSubstr("--model and --checkpoint contradict each other"));
  ASSERT_EQ(run({"train", file("run.yaml"), "--quiet"}).exit_code, 0);
  EXPECT_THAT(refused({file("out/model")}), HasSubstr("give --data"));
  EXPECT_THAT(refused({file("out"), "--model", file("out/model")}), HasSubstr("go with a config"));
  EXPECT_THAT(
      refused({file("run.yaml"), "--json", file("run.yaml")}),
      AllOf(HasSubstr("--json"), HasSubstr(file("run.yaml"))));
  EXPECT_THAT(
      refused({file("run.yaml"), "--data", file("nowhere.txt")}), HasSubstr(file("nowhere.txt")));
  std::ofstream(file("empty.txt")) << "";
  EXPECT_THAT(
      refused({file("run.yaml"), "--data", file("empty.txt")}),
      HasSubstr("--data: " + file("empty.txt") + " is empty"));
  EXPECT_THAT(
      refused({file("run.yaml"), "--data", file("run.yaml")}),
      HasSubstr("--data: the ending of " + file("run.yaml") + " is unknown"));
  EXPECT_THAT(
      refused({file("run.yaml"), "--samples", "0"}),
      HasSubstr("--samples: '0' is not allowed; give a whole number above 0;"));
  const std::string adapters = PALIMPSEST_TEST_DATA "/lora/llama-tiny-qv";
  EXPECT_THAT(
      refused({adapters, "--data", file("corpus.txt")}),
      HasSubstr(adapters + " holds adapters alone; name their model"));
}

TEST_F(EvalVerb, FilesMayHaveAnyNames) {
  ASSERT_EQ(run({"train", file("run.yaml"), "--quiet"}).exit_code, 0);
  for (const char* name : {"a, b.txt", "[c].txt", "d: e #f.txt", "null"}) {
    std::filesystem::copy(file("corpus.txt"), file(name));
    const json found =
        evaluate({file("out/model"), "--data", file(name), "--format", "text", "--samples", "1"});
    EXPECT_EQ(found["samples"], 1) << name;
  }
}

// Nothing of an evaluation could be saved; a run stops where it can go on from.
TEST(EvalVerbDeathTest, ASignalEndsItAtOnce) {
  const auto terminated_in = [](OnSignal on_signal) {
    RankSession session(RankEnvironment{}, RunConfig(), "build", on_signal);
    return session.run([](Ranks& ranks) {
      std::raise(SIGTERM);
      return ranks.here().stop_requested() ? 75 : 0;
    });
  };
  EXPECT_EXIT(
      std::exit(terminated_in(OnSignal::kEndAtOnce)), ::testing::KilledBySignal(SIGTERM), "");
  EXPECT_EXIT(
      std::exit(terminated_in(OnSignal::kStopWhereSafe)), ::testing::ExitedWithCode(75), "");
}

// Of a merged model in the place of adapters nothing is frozen.
TEST_F(EvalVerb, AWholeModelInThePlaceOfAdaptersHasNoFrozenWeights) {
  const std::string config = file("lora.yaml");
  std::ofstream(config) << "model: {path: base}\n"
                           "data: {files: [a.txt]}\n"
                           "lora: {rank: 2}\n"
                           "precision: {compute: bf16, frozen: nf4}\n"
                           "optimizer: {learning_rate: 1e-2}\n";
  EvalOptions options{.target = config, .model = "merged"};
  const RunConfig merged = find_eval_target(options).config;
  EXPECT_FALSE(merged.has_lora());
  EXPECT_FALSE(merged.precision().has_frozen());
  EXPECT_EQ(merged.precision().compute(), "bf16");
  options.overrides = {"training.freeze=[embed_tokens, layers]"};
  EXPECT_EQ(find_eval_target(options).config.precision().frozen(), "nf4");
  options = {.target = config, .model = PALIMPSEST_TEST_DATA "/lora/llama-tiny-qv"};
  EXPECT_EQ(find_eval_target(options).config.precision().frozen(), "nf4");
}

// A file of another ending than the run's own is read by it.
TEST_F(EvalVerb, ReadsFilesAsTheRunDoesOrByTheirEnding) {
  ASSERT_EQ(run({"train", file("run.yaml"), "--quiet"}).exit_code, 0);
  EvalOptions options{.target = file("run.yaml"), .data = {"a.txt", "b.bin"}};
  const EvalTarget target = find_eval_target(options);
  ASSERT_EQ(target.request.files.size(), 2U);
  EXPECT_EQ(target.request.files[0].format, "text");
  EXPECT_EQ(target.request.files[1].format, "");
  options.format = "messages";
  EXPECT_EQ(find_eval_target(options).request.files[1].format, "messages");
}

} // namespace
} // namespace palimpsest
