// Covers: launcher/cli/stack_verb.cc

#include <palimpsest/tests/launcher/program/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using testing::eventually;
using ::testing::HasSubstr;
using namespace std::chrono_literals;
using nlohmann::json;

class Stack : public testing::ProgramRanks {
 protected:
  /// `stack CONFIG more…` of a model whose activations weigh most; the exit code.
  int stack(const testing::Words& more) {
    return wait_for(start_stack(more), 120s).value_or(-1);
  }
  pid_t start_stack(
      const testing::Words& more,
      const std::string& training = "global_batch_size: 8, threads: 1",
      const std::string& sections = "") {
    std::string text;
    for (int index = 0; index < 8 * 65; ++index) {
      text += static_cast<char>('a' + index * index % 23);
    }
    std::ofstream(file("text.txt")) << text;
    std::ofstream(file("run.yaml"))
        << "model: {family: llama, hidden_size: 64, num_hidden_layers: 6, num_attention_heads: 4, "
           "num_key_value_heads: 2, intermediate_size: 176, vocab_size: 256}\n"
        << "data: {files: [" << file("text.txt") << "], format: text, sequence_length: 64}\n"
        << "training: {" << training << "}\n"
        << "optimizer: {learning_rate: 1e-3}\n"
        << "activation_checkpointing: sqrt\n"
        << sections;
    testing::Words words = {
        PALIMPSEST_PROGRAM, "stack", file("run.yaml"), "training.output=" + output().string()};
    words.insert(words.end(), more.begin(), more.end());
    return start(words);
  }
  /// The hidden folder of the rows' runs, while there is one.
  std::string scratch() const {
    for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
      if (entry.path().filename().string().starts_with(".run-stack")) {
        return entry.path().filename();
      }
    }
    return "";
  }
  std::string file(const std::string& name) const {
    return (folder_ / name).string();
  }
};

// Losses are those of the same training whatever the row; every prediction holds; and each technique
// that exists to save bytes saves some.
TEST_F(Stack, RowsTrainAlikeWithLessMemory) {
  const int code = stack(
      {"--only",
       "lean,checkpointing,accumulation,zero3",
       "--steps",
       "3",
       "--json",
       file("rows.json"),
       "--csv",
       file("rows.csv"),
       "--markdown",
       file("rows.md"),
       "--html",
       file("rows.html")});
  ASSERT_EQ(code, 0) << out() << err();
  const json rows = json::parse(testing::text_of(file("rows.json")));
  std::vector<std::string> names;
  for (const json& row : rows) {
    names.push_back(row["name"]);
    EXPECT_LE(row["loss_difference"], 1e-5) << row;
    EXPECT_LE(row["grad_norm_difference"], 1e-5) << row;
    EXPECT_GT(row["step_time_s"], 0);
    const double measured = row["peak_device_bytes"];
    EXPECT_NEAR(measured, row["predicted_peak_bytes"], 0.05 * measured) << row;
    EXPECT_NEAR(row["percent"], 100 * measured / rows[0]["peak_device_bytes"].get<double>(), 1e-9);
    EXPECT_GT(row["peak_rss_bytes"], measured); // of a process that holds LibTorch besides
  }
  EXPECT_THAT(
      names,
      ElementsAre(
          "baseline",
          "+ lean tape",
          "+ checkpointing",
          "+ micro-batches of 1",
          "+ ZeRO-3 on 2 ranks"));
  for (size_t row = 1; row < rows.size(); ++row) {
    EXPECT_LT(rows[row]["peak_device_bytes"], rows[row - 1]["peak_device_bytes"]) << rows[row];
  }
  EXPECT_EQ(rows[0]["recompute_share"], 0);
  EXPECT_GT(rows[2]["recompute_share"], 0.1);
  EXPECT_THAT(out(), HasSubstr("+ ZeRO-3 on 2 ranks"));
  EXPECT_THAT(testing::text_of(file("rows.md")), HasSubstr("| + checkpointing |"));
  EXPECT_THAT(testing::text_of(file("rows.csv")), HasSubstr("\"+ checkpointing\","));
  EXPECT_THAT(testing::text_of(file("rows.html")), HasSubstr("\"name\":\"+ checkpointing\""));
  EXPECT_FALSE(std::filesystem::exists(output())); // nothing of the rows' runs is left
}

// As its config stands for a whole fine-tuning: the rows take the few steps asked for, whatever would
// evaluate, save, end early or warm up in it.
TEST_F(Stack, TakesTheConfigOfALongRun) {
  const pid_t process = start_stack(
      {"--only",
       "bf16,accumulation,zero3",
       "--steps",
       "4",
       "--json",
       file("rows.json"),
       "data.validation.fraction=0.25"},
      "epochs: 3, global_batch_size: 4, micro_batch_size: 2, threads: 1",
      "evaluation: {every: 1, patience: 1, min_improvement: 100}\n"
      "checkpoint: {save_every: 2, keep_last: 1}\n"
      "scheduler: {name: cosine, warmup_steps: 50}\n"
      "precision: {compute: bf16, master: none, moments: bf16}\n");
  ASSERT_EQ(wait_for(process, 120s), 0) << out() << err();
  const json rows = json::parse(testing::text_of(file("rows.json")));
  ASSERT_EQ(rows.size(), 4U);
  for (const json& row : rows) {
    const bool narrow = row != rows[0];
    EXPECT_LE(row["loss_difference"], narrow ? 5e-3 : 0) << row;
    EXPECT_LE(row["grad_norm_difference"], narrow ? 2e-2 : 0) << row;
    EXPECT_GT(row["tokens_per_s"], 0);
  }
  EXPECT_FALSE(std::filesystem::exists(output()));
}

TEST_F(Stack, SaysWhichRowFailedAndWhatItSaid) {
  EXPECT_EQ(stack({"--only", "lean", "data.files=[/nonexistent/a.safetensors]"}), 2);
  EXPECT_THAT(err(), HasSubstr("the row 'baseline' ended with exit code 2"));
  EXPECT_THAT(err(), HasSubstr("/nonexistent/a.safetensors"));
}

// The row's processes end with it, ranks too, and nothing stays on the disk.
TEST_F(Stack, ASignalLeavesNothingBehind) {
  struct Case {
    int signal;
    testing::Words words;
    std::string when; // is there
    std::string row;
  };
  const std::vector<Case> cases = {
      {SIGTERM, {"--only", "lean", "--steps", "1000000"}, "0/run/metrics.jsonl", "baseline"},
      {SIGINT, {"--only", "zero3", "--steps", "2"}, "1/run/logs", "+ ZeRO-3 on 2 ranks"}};
  for (const Case& one : cases) {
    const pid_t process = start_stack(one.words);
    ASSERT_TRUE(eventually(120s, [&] {
      return std::filesystem::exists(folder_ / scratch() / one.when);
    })) << err();
    kill(process, one.signal);
    EXPECT_EQ(wait_for(process, 60s), 128 + one.signal) << err();
    EXPECT_THAT(err(), HasSubstr(fmt::format("stack: ended by signal {} (", one.signal)));
    EXPECT_THAT(err(), HasSubstr("in the row '" + one.row + "'"));
    EXPECT_TRUE(all_gone(5s));
    EXPECT_EQ(scratch(), "");
    EXPECT_FALSE(std::filesystem::exists(output()));
  }
}

TEST_F(Stack, WrongUseEndsBeforeAnythingRuns) {
  EXPECT_EQ(stack({"--only", "warp"}), 2);
  EXPECT_THAT(err(), HasSubstr("'warp' is not a technique"));
  EXPECT_EQ(stack({"--json", "/nonexistent/folder/rows.json"}), 1);
  EXPECT_THAT(err(), HasSubstr("/nonexistent/folder"));
  EXPECT_EQ(stack({"--only", "lean", "precision.compute=int3"}), 2);
  EXPECT_EQ(out(), "");
}

} // namespace
} // namespace palimpsest
