// Covers: launcher/compose/settings.cc
// Runs on conversations: resumed, on several ranks, packed and padded.

#include <palimpsest/core/base/files.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/python/python.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

using testing::Finished;
using testing::TestFolder;
using testing::train;
using testing::train_on;

using JinjaConversations = NeedsJinja;

constexpr int kConversations = 11;

/// Conversations of different lengths for a small decoder.
std::string yaml(const TestFolder& folder, int count = kConversations) {
  std::string lines;
  for (int i = 0; i < count; ++i) {
    std::string question = "What is " + std::to_string(i) + " and";
    for (int word = 0; word < i * i % 13; ++word) {
      question += " " + std::to_string(word * i);
    }
    lines += fmt::format(
        R"({{"messages":[{{"role":"system","content":"Count."}},{{"role":"user","content":"{}"}},)"
        R"({{"role":"assistant","content":"{}."}}]}})"
        "\n",
        question,
        i * 7);
  }
  write_file_atomically(folder / "chat.jsonl", lines);
  return fmt::format(
      "model: {{family: llama, vocab_size: 512, hidden_size: 24, num_hidden_layers: 2, "
      "num_attention_heads: 4, num_key_value_heads: 2, intermediate_size: 56}}\n"
      "data: {{files: [{}], tokenizer: {}, chat_template: qwen, sequence_length: 128}}\n"
      "training: {{threads: 1, steps: 4, global_batch_size: 4, micro_batch_size: 2}}\n"
      "optimizer: {{learning_rate: 1e-3}}\n",
      folder / "chat.jsonl",
      std::string(PALIMPSEST_TEST_DATA) + "/tokenizers/qwen2-512");
}

TEST(Conversations, GoOnBitForBit) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const Finished whole = train(config, folder);
  ASSERT_EQ(whole.records.all.size(), 4);
  EXPECT_NEAR(whole.records.losses()[0], std::log(512), 0.2); // a model that knows nothing
  std::filesystem::remove_all(folder / "run");
  std::vector<double> losses;
  for (const char* steps : {"2", "4"}) {
    palimpsest::Run run(
        testing::run_config(config, folder, {std::string("training.steps=") + steps}));
    run.prepare();
    testing::Records records;
    run.train({&records});
    for (const double loss : records.losses()) {
      losses.push_back(loss);
    }
  }
  EXPECT_EQ(losses, whole.records.losses());
}

// The template that the tokenizer's folder brings is that of the name, so far as these go.
TEST_F(JinjaConversations, ReadTheModelsOwnTemplate) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const Finished named = train(config, folder);
  std::filesystem::remove_all(folder / "run");
  const Finished own = train_on(2, config, folder, {"data.chat_template=null"});
  ASSERT_EQ(own.records.all.size(), named.records.all.size());
  for (size_t step = 0; step < own.records.all.size(); ++step) {
    EXPECT_EQ(own.records.all[step].tokens, named.records.all[step].tokens);
    EXPECT_NEAR(own.records.all[step].loss, named.records.all[step].loss, 1e-5);
  }
}

// What the data are tokenized by is in the checkpoint, be it data.tokenizer's or the model's own.
TEST(Conversations, GoOnWhereTheTokenizersFolderIsGone) {
  namespace fs = std::filesystem;
  for (const bool own : {false, true}) {
    const TestFolder folder;
    const std::string texts = folder / "texts";
    std::string config = yaml(folder);
    std::vector<std::string> words = {"data.tokenizer=" + texts};
    if (own) {
      train(config, folder);
      fs::rename(folder / "run/model", texts);
      config.replace(0, config.find('\n'), "model: {path: " + texts + "}");
      words = {"data.tokenizer=null"};
    } else {
      fs::copy(fs::path(PALIMPSEST_TEST_DATA) / "tokenizers/qwen2-512", texts);
    }
    const std::vector<double> whole = train_on(1, config, folder, words).records.losses();
    words.emplace_back("training.steps=2");
    std::vector<double> losses = train_on(1, config, folder, words).records.losses();
    fs::remove_all(texts);
    words.back() = "training.steps=4";
    std::ranges::copy(
        train_on(1, config, folder, words, /*anew=*/false).records.losses(),
        std::back_inserter(losses));
    EXPECT_EQ(losses, whole) << own;
  }
}

// A model made here has no tokenizer but the data's: it goes with the weights, and with checkpoints.
TEST(Conversations, LeaveAModelWithItsTokenizer) {
  const TestFolder folder;
  train(yaml(folder), folder);
  const std::filesystem::path tokenizer =
      std::filesystem::path(PALIMPSEST_TEST_DATA) / "tokenizers/qwen2-512";
  for (const char* model : {"run/model", "run/step-00000004/model"}) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
      EXPECT_EQ(read_file((folder / model) + "/" + name), read_file(tokenizer / name)) << model;
    }
  }
}

TEST(Conversations, DoNotDependOnTheRanks) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> overrides = {
      "training.reproducible=true", "training.micro_batch_size=1"};
  const Finished one = train(config, folder, overrides);
  std::vector<std::string> shared = overrides;
  shared.emplace_back("parallel.zero=2");
  const Finished two = train_on(2, config, folder, shared);
  EXPECT_EQ(two.records.losses(), one.records.losses());
  EXPECT_EQ(two.parameters, one.parameters);
  EXPECT_EQ(one.records.all[0].tokens, two.records.all[0].tokens);
  EXPECT_LT(one.records.all[0].tokens, 4 * 128); // padding is not counted
}

// One to five of them on four ranks, in batches of four: ranks that have none of them take part.
TEST(Conversations, MayBeFewerThanTheRanks) {
  for (const int count : {1, 3, 5}) {
    const TestFolder folder;
    const std::string config = yaml(folder, count);
    const std::vector<std::string> overrides = {
        "training.reproducible=true", "training.micro_batch_size=1", "training.steps=2"};
    const Finished one = train(config, folder, overrides);
    for (const char* more : {"parallel.zero=3", "data.packing=true"}) {
      std::vector<std::string> shared = overrides;
      shared.emplace_back(more);
      const Finished four = train_on(4, config, folder, shared);
      ASSERT_EQ(four.records.all.size(), 2) << more;
      if (std::string(more) == "parallel.zero=3") {
        EXPECT_EQ(four.records.losses(), one.records.losses()) << count;
        EXPECT_EQ(four.parameters, one.parameters) << count;
      } else {
        EXPECT_EQ(four.records.all[0].skipped, false) << count;
      }
    }
  }
}

/// The first gradients, each relative to its tensor's largest.
double gradient_difference(const Finished& found, const Finished& expected) {
  double worst = 0;
  for (const auto& [name, gradient] : expected.gradients) {
    double largest = 0;
    double difference = 0;
    for (size_t index = 0; index < gradient.size(); ++index) {
      largest = std::max<double>(largest, std::abs(gradient[index]));
      difference =
          std::max<double>(difference, std::abs(found.gradients.at(name)[index] - gradient[index]));
    }
    worst = std::max(worst, difference / largest);
  }
  return worst;
}

// One step over all conversations: each in a row of its own on one rank, against fewer, fuller rows
// under every policy and ZeRO stage.
TEST(Conversations, TeachTheSamePackedAndPadded) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> one_step = {"training.steps=1", "training.global_batch_size=64"};
  const Finished padded = train(config, folder, one_step);
  ASSERT_EQ(padded.records.all.size(), 1);
  const auto packed = [&](int ranks, std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), one_step.begin(), one_step.end());
    overrides.emplace_back("data.packing=true");
    const Finished finished = train_on(ranks, config, folder, overrides);
    EXPECT_EQ(finished.records.all[0].tokens, padded.records.all[0].tokens);
    const double loss = padded.records.losses()[0];
    EXPECT_NEAR(finished.records.losses()[0], loss, 1e-6 * loss);
    EXPECT_LE(gradient_difference(finished, padded), 1e-6);
  };
  const bool all = std::getenv("PALIMPSEST_FULL") != nullptr;
  const std::vector<const char*> policies = {
      "full", "auto", "none", "sqrt", "{policy: every_n, n: 1}"};
  for (const char* policy : std::span(policies).first(all ? policies.size() : 2)) {
    SCOPED_TRACE(policy);
    packed(1, {std::string("activation_checkpointing=") + policy});
  }
  const std::vector<const char*> stages = {"3", "1", "0", "2"};
  for (const char* zero : std::span(stages).first(all ? stages.size() : 2)) {
    SCOPED_TRACE(zero);
    packed(2, {std::string("parallel.zero=") + zero, "activation_checkpointing=full"});
  }
}

TEST(Conversations, AreMixedByTheirWeights) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  write_file_atomically(folder / "more.txt", std::string(3000, 'a'));
  const Finished mixed = train(
      config,
      folder,
      {"data.files=null",
       "data.format=messages",
       fmt::format(
           "data.sources=[{{path: {}, weight: 2}}, {{path: {}, format: text, weight: 0.5}}]",
           folder / "chat.jsonl",
           folder / "more.txt"),
       "training.steps=null",
       "training.global_batch_size=2"});
  EXPECT_GT(mixed.records.all.size(), static_cast<size_t>(kConversations));
  EXPECT_LT(mixed.records.all.size(), 2U * kConversations);
}

} // namespace
} // namespace palimpsest
