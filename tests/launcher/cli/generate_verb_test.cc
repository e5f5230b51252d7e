// Covers: launcher/compose/chat.cc
// Covers: launcher/compose/generation_model.cc
// Covers: launcher/compose/generation_source.cc
// Covers: launcher/compose/text_generator.cc
#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/compose/generation_model.h>
#include <palimpsest/tests/launcher/cli/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <sstream>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::Outcome;
using Words = std::vector<std::string>;

const std::string kData = PALIMPSEST_TEST_DATA;

std::string model(const std::string& name) {
  return kData + "/models/" + name;
}

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

class GenerateVerb : public testing::ProgramFixture {
 protected:
  /// llama-tiny, with a tokenizer that fits.
  static Words tiny(const Words& more, const std::string& tokenizer = "gpt2-512") {
    return Words{
               "generate",
               model("llama-tiny"),
               "data.tokenizer=" + kData + "/tokenizers/" + tokenizer,
               "training.threads=1"} +
        more;
  }
  static Outcome generate(const Words& more) {
    return testing::run(tiny(more));
  }
  static std::vector<nlohmann::json> records(const std::string& text) {
    std::vector<nlohmann::json> all;
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      all.push_back(nlohmann::json::parse(line));
    }
    return all;
  }
  std::string write_file(const std::string& name, const std::string& text) const {
    std::ofstream(folder_ / name) << text;
    return (folder_ / name).string();
  }
  /// The folder of a tokenizer whose tokens are the bytes and an end of texts.
  std::string train_bytes() const {
    const std::string folder = (folder_ / "bytes").string();
    const Outcome made = testing::run(
        {"tokenize",
         write_file("text.txt", "some text"),
         "--train",
         "--vocab-size",
         "257",
         "-o",
         folder});
    EXPECT_EQ(made.exit_code, 0) << made.err;
    return folder;
  }
  static Outcome chat_with(const std::string& lines, const Words& more) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    EXPECT_EQ(write(ends[1], lines.data(), lines.size()), static_cast<ssize_t>(lines.size()));
    close(ends[1]);
    const int before = dup(STDIN_FILENO);
    dup2(ends[0], STDIN_FILENO);
    const Outcome outcome = testing::run(tiny(Words{"--chat"} + more, "llama3-512"));
    dup2(before, STDIN_FILENO);
    close(before);
    close(ends[0]);
    return outcome;
  }
  static void expect_refused(const Words& arguments, const std::string& words) {
    const Outcome outcome = testing::run(arguments);
    EXPECT_EQ(outcome.exit_code, 2) << outcome.out;
    EXPECT_THAT(outcome.err, HasSubstr(words));
    EXPECT_EQ(outcome.out, "");
  }
};

// Prompts and conversations, by each kind of tokenizer: the text that transformers decodes.
TEST_F(GenerateVerb, WritesTheReferencesTexts) {
  std::ifstream file(kData + "/generations.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("texts");
  ASSERT_GE(cases.size(), 16U);
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(one.dump());
    const Words settings = {"--max-new-tokens", "20", "--repetition-penalty", "1.5", "--json"};
    Words what;
    if (one.contains("prompt")) {
      what = {"--prompt", one.at("prompt")};
    } else {
      what = {"--messages", write_file("chat.json", one.at("messages").dump())};
    }
    const Outcome outcome = testing::run(tiny(what + settings, one.at("tokenizer")));
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json record = records(outcome.out).at(0);
    EXPECT_EQ(record.at("text"), one.at("text"));
    EXPECT_EQ(record.at("finish_reason"), "length");
    EXPECT_EQ(record.at("tokens"), 20);
    if (one.contains("messages")) {
      nlohmann::json messages = one.at("messages");
      messages.push_back({{"role", "assistant"}, {"content", one.at("text")}});
      EXPECT_EQ(record.at("messages"), messages);
    } else {
      EXPECT_EQ(record.at("prompt"), one.at("prompt"));
    }
  }
}

TEST_F(GenerateVerb, OnePromptIsTextOnStandardOutputAndNothingElse) {
  const Words what = {"--prompt", "Once", "--max-new-tokens", "12", "--repetition-penalty", "1.5"};
  const Outcome plain = generate(what);
  ASSERT_EQ(plain.exit_code, 0) << plain.err;
  EXPECT_THAT(plain.err, AllOf(HasSubstr("llama, 250"), HasSubstr("12 tokens in")));
  const Outcome json = generate(what + Words{"--json", "--quiet"});
  EXPECT_EQ(json.err, "");
  EXPECT_EQ(plain.out, records(json.out).at(0).at("text").get<std::string>() + "\n");
}

// Greedy and drawn texts alike: a prompt's text does not depend on those beside it.
TEST_F(GenerateVerb, TheBatchChangesNoText) {
  std::string lines;
  for (int i = 0; i < 7; ++i) {
    lines += fmt::format("{} and {}\n", std::string(static_cast<size_t>(1 + 5 * i % 17), 'x'), i);
  }
  const std::string prompts = write_file("prompts.txt", lines);
  for (const Words& draws :
       {Words{}, Words{"--temperature", "1.3", "--top-p", "0.9", "--seed", "5"}}) {
    std::vector<std::string> outputs;
    for (const char* batch : {"1", "3", "32"}) {
      const Outcome outcome = generate(
          Words{"--prompts", prompts, "--batch", batch, "--max-new-tokens", "15", "--json"} +
          draws);
      ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
      outputs.push_back(outcome.out);
    }
    EXPECT_EQ(records(outputs[0]).size(), 7U);
    EXPECT_EQ(outputs[0], outputs[1]);
    EXPECT_EQ(outputs[0], outputs[2]);
  }
}

TEST_F(GenerateVerb, ASeedMakesADraw) {
  const auto text = [&](const Words& draws) {
    return generate(Words{"--prompt", "Once", "--max-new-tokens", "30", "--quiet"} + draws).out;
  };
  const std::string likeliest = text({});
  EXPECT_EQ(text({"--temperature", "0"}), likeliest);
  EXPECT_EQ(text({"--top-k", "1"}), likeliest); // a draw among one
  EXPECT_EQ(text({"--seed", "1"}), text({"--seed", "1", "--temperature", "1"}));
  EXPECT_NE(text({"--seed", "1"}), text({"--seed", "2"}));
  EXPECT_NE(text({"--seed", "1"}), likeliest);
}

TEST_F(GenerateVerb, StopsWhereToldTo) {
  const Words what = {"--prompt", "Once", "--max-new-tokens", "30", "--repetition-penalty", "1.5"};
  const nlohmann::json whole = records(generate(what + Words{"--json"}).out).at(0);
  const auto text = whole.at("text").get<std::string>();
  const std::string stop = text.substr(text.size() / 2, 2);
  const nlohmann::json part =
      records(generate(what + Words{"--json", "--stop", "never", "--stop", stop}).out).at(0);
  EXPECT_EQ(part.at("text"), text.substr(0, text.find(stop)));
  EXPECT_EQ(part.at("finish_reason"), "stop");
  EXPECT_LT(part.at("tokens"), whole.at("tokens"));
}

TEST_F(GenerateVerb, WritesRecordsToAFile) {
  const std::string prompts =
      write_file("prompts.jsonl", "{\"prompt\": \"a\"}\n{\"prompt\": \"b\"}\n");
  const std::string texts = (folder_ / "texts.jsonl").string();
  const Outcome outcome =
      generate({"--prompts", prompts, "--max-new-tokens", "3", "--output", texts});
  ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  const auto written = [&] {
    std::stringstream text;
    text << std::ifstream(texts).rdbuf();
    return text.str();
  };
  const std::string first = written();
  const auto all = records(first);
  ASSERT_EQ(all.size(), 2U);
  EXPECT_EQ(all[1].at("prompt"), "b");
  EXPECT_EQ(all[1].at("tokens"), 3);
  const Outcome plain = generate({"--prompts", prompts, "--max-new-tokens", "3", "--quiet"});
  EXPECT_THAT(
      plain.out,
      AllOf(
          HasSubstr("prompts.jsonl:1\n" + all[0].at("text").get<std::string>() + "\n"),
          HasSubstr("prompts.jsonl:2\n" + all[1].at("text").get<std::string>() + "\n")));
  const Outcome failed =
      generate({"--prompts", prompts, "--output", texts, "memory.device_budget=100kB"});
  EXPECT_NE(failed.exit_code, 0);
  EXPECT_EQ(written(), first); // what is there stays where no text comes
}

// Trained a little, the model is found by its run's output folder, its config, a checkpoint of it, and
// as a folder; without a tokenizer and with 256 tokens it reads bytes.
TEST_F(GenerateVerb, FindsTheModelOfARun) {
  const std::string config =
      write_tiny_config("global_batch_size: 4, micro_batch_size: 2, threads: 1, steps: 3");
  ASSERT_EQ(testing::run({"train", config, "--quiet"}).exit_code, 0);
  const auto text = [](const std::string& name) {
    const Outcome outcome = testing::run(
        {"generate",
         name,
         "training.threads=1",
         "--prompt",
         "aa",
         "--max-new-tokens",
         "9",
         "--quiet"});
    EXPECT_EQ(outcome.exit_code, 0) << name << outcome.err;
    return outcome.out;
  };
  const fs::path output = folder_ / "out";
  const std::string expected = text((output / "model").string());
  EXPECT_NE(expected, "");
  EXPECT_EQ(text(config), expected);
  EXPECT_EQ(text(output.string()), expected);
  EXPECT_EQ(text((output / "step-00000003").string()), expected);
  fs::remove_all(output / "model");
  EXPECT_EQ(text(output.string()), expected);
  fs::remove_all(output);
  expect_refused(
      {"generate", config, "--prompt", "a"}, "holds neither a model nor a checkpoint; train");
}

TEST_F(GenerateVerb, SaysWhatIsMissingOfAPathAndHowToDownloadAnId) {
  for (const std::string& path : {std::string("runs/none"), (folder_ / "none").string()}) {
    expect_refused(
        {"generate", path, "--prompt", "a"}, "generate: " + path + " is not there; give");
  }
  expect_refused(
      {"generate", "some-org/none", "--prompt", "a"}, "generate: there is no folder some-org/none");
  expect_refused({"generate", "some-org/none", "--prompt", "a"}, "\n  hf download some-org/none");
  const std::string empty = folder_.string();
  expect_refused(
      {"generate", empty, "--prompt", "a"},
      empty + " holds neither a model nor a checkpoint; give a model's folder");
  write_file("run.json", "{\"run_id\": \"0a1b\"}"); // as a run begins
  expect_refused(
      {"generate", empty, "--prompt", "a"},
      empty + " holds neither a model nor a checkpoint yet: its run has saved none; let it end");
}

// A session through a pipe: a line is a message, and each reply a line.
// No folder holds the weights under such adapters; the checkpoint does.
TEST_F(GenerateVerb, FindsTheAdaptersOfAModelThatWasInitialised) {
  const std::string config = write_tiny_config(
      "global_batch_size: 4, micro_batch_size: 2, threads: 1, steps: 1", "lora: {rank: 2}\n");
  ASSERT_EQ(testing::run({"train", config, "--quiet"}).exit_code, 0);
  ASSERT_TRUE(fs::exists(folder_ / "out/adapter"));
  const Words more = {"training.threads=1", "--prompt", "aa", "--max-new-tokens", "9", "--quiet"};
  const Outcome saved =
      testing::run(Words{"generate", (folder_ / "out/step-00000001").string()} + more);
  ASSERT_EQ(saved.exit_code, 0) << saved.err;
  for (const std::string& name : {config, (folder_ / "out").string()}) {
    const Outcome found = testing::run(Words{"generate", name} + more);
    EXPECT_EQ(found.exit_code, 0) << found.err;
    EXPECT_EQ(found.out, saved.out);
  }
}

TEST_F(GenerateVerb, ChatsOnStandardInput) {
  const auto chat = [](const std::string& lines, const Words& more) {
    return chat_with(lines, Words{"--max-new-tokens", "8"} + more);
  };
  const Words quiet = {"--quiet", "--repetition-penalty", "1.5"};
  const Outcome one = chat("Who is there?\n", quiet);
  ASSERT_EQ(one.exit_code, 0) << one.err;
  EXPECT_NE(one.out, "\n");
  EXPECT_EQ(one.err, "");
  const Outcome twice = chat("Who is there?\n/reset\nWho is there?\n/exit\nHi\n", quiet);
  EXPECT_EQ(twice.out, one.out + one.out);
  EXPECT_NE(chat("Who is there?\n", quiet + Words{"--system", "Be brief."}).out, one.out);
  const Outcome wrong = chat("Hi\n/fly\n", quiet);
  EXPECT_EQ(wrong.exit_code, 2);
  EXPECT_THAT(wrong.err, HasSubstr("there is no command /fly"));
  EXPECT_EQ(chat("", quiet).out, "");
}

TEST_F(GenerateVerb, ComputesInBf16AndWithinABudget) {
  const Words what = {"--prompt", "Once", "--max-new-tokens", "5", "--json"};
  const Outcome narrow = generate(what + Words{"precision.compute=bf16"});
  ASSERT_EQ(narrow.exit_code, 0) << narrow.err;
  EXPECT_THAT(narrow.err, HasSubstr("in bf16"));
  EXPECT_EQ(records(narrow.out).at(0).at("tokens"), 5);
  EXPECT_EQ(generate(what + Words{"memory.device_budget=8MiB"}).exit_code, 0);
}

// The least budget that is named is enough, and a byte less is not.
TEST_F(GenerateVerb, NamesTheLeastBudgetBeforeItGenerates) {
  const std::string prompts = write_file("prompts.txt", "Once\nOnce upon a time\n");
  for (const Words& what :
       {Words{"--prompt", "Once", "--max-new-tokens", "300"},
        Words{"--prompt", std::string(300, 'a'), "--max-new-tokens", "5"},
        Words{"--prompts", prompts, "--max-new-tokens", "200"},
        Words{"--prompt", "Once", "--max-new-tokens", "50", "precision.frozen=int8"}}) {
    SCOPED_TRACE(what[1].substr(0, 20));
    const auto with_budget = [&](const std::string& budget) {
      return generate(what + Words{"memory.device_budget=" + budget});
    };
    const Outcome refused = with_budget("900KiB");
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_EQ(refused.out, "");
    EXPECT_THAT(refused.err, HasSubstr("memory.device_budget: 900 KiB is not enough to generate"));
    EXPECT_THAT(refused.err, AllOf(HasSubstr("weights "), HasSubstr("workspace ")));
    const size_t at = refused.err.find('(');
    const int64_t least = std::stoll(refused.err.substr(at + 1));
    ASSERT_GT(least, 250'000);
    const Outcome enough = with_budget(std::to_string(least));
    EXPECT_EQ(enough.exit_code, 0) << enough.err;
    EXPECT_EQ(with_budget(std::to_string(least - 1)).exit_code, 2);
  }
  const Outcome two =
      generate({"--prompts", prompts, "--max-new-tokens", "200", "memory.device_budget=900KiB"});
  EXPECT_THAT(two.err, HasSubstr("or --batch 1, which could do with"));
}

// A token takes 1 KiB. The conversation "Hello" has over 6 and under 20; room is made for 64, then
// doubled.
TEST_F(GenerateVerb, NamesTheLeastBudgetOfAChatsFirstReply) {
  for (const auto& [tokens, room] : {std::pair("45", "64.0"), {"100", "128"}}) {
    SCOPED_TRACE(tokens);
    const Words what = {"--max-new-tokens", tokens, "--quiet", "--repetition-penalty", "1.5"};
    const auto with_budget = [&](const std::string& budget) {
      return chat_with("Hello\n", what + Words{"memory.device_budget=" + budget});
    };
    const Outcome refused = with_budget("900KiB");
    EXPECT_EQ(refused.exit_code, 2);
    EXPECT_THAT(refused.err, HasSubstr(fmt::format("keys and values {} KiB", room)));
    const int64_t least = std::stoll(refused.err.substr(refused.err.find('(') + 1));
    const Outcome enough = with_budget(std::to_string(least));
    EXPECT_EQ(enough.exit_code, 0) << enough.err;
    EXPECT_EQ(with_budget(std::to_string(least - 1)).exit_code, 2);
  }
}

// Nothing is measured that would take much more than the budget.
TEST_F(GenerateVerb, SaysThatAPromptTakesMoreThanTheBudget) {
  const auto refuse = [](const std::string& budget, int64_t prompt) {
    const GenerationModel llama(
        find_generation_source(model("llama-tiny"), {"memory.device_budget=" + budget}));
    llama.require_budget({{.prompt = prompt, .tokens = prompt + 1}}, 1);
  };
  // 1 KiB a token, and the weights
  EXPECT_THAT(
      [&] { refuse("1MiB", 100'000); },
      ::testing::ThrowsMessage<UserError>(AllOf(
          HasSubstr("1.00 MiB is not enough to generate, which takes more than 98.6 MiB: keys "
                    "and values 97.7 MiB, weights 978 KiB, and workspace; give more, or a "
                    "shorter prompt"))));
  // which 6 MiB hold, but not what the longest block computes beside
  EXPECT_THAT(
      [&] { refuse("6MiB", 5000); },
      ::testing::ThrowsMessage<UserError>(
          HasSubstr("6.00 MiB is not enough to generate, which takes more than ")));
  // a budget that no machine has
  EXPECT_THAT(
      [&] { refuse(std::to_string(int64_t{1} << 51), 1'000'000'000'000); },
      ::testing::ThrowsMessage<EnvironmentError>(
          HasSubstr("out of memory while measuring what generating takes: ")));
}

TEST_F(GenerateVerb, NamesTheFileThatCannotBeWritten) {
  for (const auto& [file, why] :
       {std::pair("/dev/full", "No space left on device"),
        std::pair("/proc/none/x", "No such file or directory")}) {
    const Outcome outcome =
        generate({"--prompt", "Once", "--max-new-tokens", "2", "--output", file});
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_THAT(outcome.err, HasSubstr(fmt::format("cannot write {}: {}", file, why)));
  }
}

TEST_F(GenerateVerb, RefusesWhatIsWrongInOneSentence) {
  const Words prompt = {"--prompt", "Once"};
  expect_refused({"generate", model("llama-tiny"), "--prompt", "a"}, "has no tokenizer.json");
  const std::string one = "generate: give exactly one of --prompt, --prompts, --messages, --chat; ";
  expect_refused(tiny({}), one);
  expect_refused(tiny(prompt + Words{"--chat"}), one);
  expect_refused(tiny({"--prompt", ""}), "--prompt: the prompt is empty");
  expect_refused(
      tiny(prompt + Words{"--chat-template", ""}),
      "--chat-template: '' is not allowed; give text that is not empty;");
  expect_refused(tiny(prompt + Words{"--temperature", "-1"}), "--temperature");
  expect_refused(tiny(prompt + Words{"--temperature", "0", "--top-k", "5"}), "without a draw");
  expect_refused(tiny(prompt + Words{"--top-p", "1.5"}), "--top-p");
  for (const char* option : {"--temperature", "--top-p", "--repetition-penalty"}) {
    expect_refused(tiny(prompt + Words{option, "nan"}), "'nan' is not allowed; give a number in [");
  }
  expect_refused(
      tiny(prompt + Words{"--seed", "-1"}),
      "--seed: '-1' is not allowed; give a whole number of at least 0;");
  expect_refused(tiny(prompt + Words{"--max-new-tokens", "0"}), "--max-new-tokens");
  expect_refused(
      tiny(prompt + Words{"--stop", ""}),
      "--stop: '' is not allowed; give text that is not empty;");
  expect_refused(tiny(prompt + Words{"--batch", "33"}), "--batch");
  expect_refused(tiny(prompt + Words{"--system", "s"}), "--system");
  expect_refused(tiny(prompt + Words{"training.steps=3"}), "training.steps changes nothing here");
  expect_refused(
      tiny(prompt + Words{"precision.compute=fp8"}), "precision.compute"); // the schema's own words
  expect_refused(
      tiny({"--messages", write_file("c.json", R"([{"role": "user", "content": "a"}])")}),
      "--chat-template");
  expect_refused(
      tiny({"--prompts", write_file("p.txt", "one\n\n")}), "p.txt:2: the prompt is empty");
  expect_refused(tiny({"--prompts", (folder_ / "none.txt").string()}), "none.txt");
  for (const char* option : {"--messages", "--prompts"}) {
    const std::string empty = write_file("empty.jsonl", "");
    expect_refused(tiny({option, empty}), option + (": " + empty) + " is empty");
  }
  expect_refused(
      tiny({"--messages", write_file("none.jsonl", "\n")}), "none.jsonl holds no record");
  expect_refused(
      tiny({"--prompts", write_file("empty.txt", "")}), "empty.txt is empty; give a prompt a line");
  expect_refused(tiny(prompt, "gpt2-2000"), "has 2000 tokens, and the model's vocabulary 512;");
  expect_refused({"generate", (folder_ / "no/model").string(), "--prompt", "a"}, "no/model");
  const std::string same = write_file("same.jsonl", "{\"prompt\": \"a\"}\n");
  expect_refused(tiny({"--prompts", same, "--output", same}), "same.jsonl");
}

TEST_F(GenerateVerb, HoldsTheWeightsUnderAdaptersInBlocks) {
  const fs::path adapter = folder_ / "adapter";
  fs::copy(kData + "/lora/llama-tiny-qv", adapter);
  const auto with_base = [&](const std::string& base) {
    std::ifstream given(kData + "/lora/llama-tiny-qv/adapter_config.json");
    nlohmann::json config = nlohmann::json::parse(given);
    config["base_model_name_or_path"] = base;
    std::ofstream(adapter / "adapter_config.json") << config;
  };
  const auto arguments = [&](const Words& more) {
    return Words{
               "generate",
               adapter.string(),
               "data.tokenizer=" + kData + "/tokenizers/llama2-512",
               "training.threads=1",
               "--prompt",
               "Once",
               "--max-new-tokens",
               "2"} +
        more;
  };
  with_base(model("llama-tiny"));
  const Outcome whole = testing::run(arguments({}));
  EXPECT_EQ(whole.exit_code, 0) << whole.err;
  EXPECT_THAT(whole.err, HasSubstr("fp32 (992 KiB)"));
  const Outcome blocks = testing::run(arguments({"precision.frozen=nf4"}));
  EXPECT_EQ(blocks.exit_code, 0) << blocks.err;
  EXPECT_THAT(blocks.err, Not(HasSubstr("fp32 (992 KiB)")));
  with_base("no/such-model");
  expect_refused(
      arguments({}), "adapter_config.json: base_model_name_or_path is \"no/such-model\", which");
  with_base("");
  expect_refused(arguments({}), "adapter_config.json: base_model_name_or_path is \"\", which");
}

// As the run trained on them: the numbers are those of its checkpoint.
TEST_F(GenerateVerb, HoldsTheWeightsUnderARunsAdaptersAsTheRunDid) {
  const std::string config = write_file(
      "run.yaml",
      fmt::format(
          "model: {{path: {}}}\n"
          "data: {{files: [{}], sequence_length: 32, tokenizer: {}}}\n"
          "lora: {{rank: 2}}\n"
          "precision: {{compute: bf16, frozen: nf4}}\n"
          "training: {{steps: 1, micro_batch_size: 2, threads: 1, output: {}}}\n"
          "optimizer: {{learning_rate: 1e-2}}\n",
          model("llama-tiny"),
          write_file("corpus.txt", std::string(2000, 'a')),
          kData + "/tokenizers/llama2-512",
          (folder_ / "out").string()));
  const Outcome trained = testing::run({"train", config, "--quiet"});
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const auto generated = [&](const std::string& source) {
    return testing::run(
        {"generate", source, "training.threads=1", "--prompt", "Once", "--max-new-tokens", "12"});
  };
  const auto told = [](const Outcome& outcome) {
    return outcome.err.substr(0, outcome.err.find(';')); // the types and what the weights take
  };
  const Outcome adapter = generated(config);
  ASSERT_EQ(adapter.exit_code, 0) << adapter.err;
  fs::remove_all(folder_ / "out/adapter");
  const Outcome checkpoint = generated(config);
  ASSERT_EQ(checkpoint.exit_code, 0) << checkpoint.err;
  EXPECT_EQ(told(adapter), told(checkpoint));
}

// Of a model that has learnt nothing half of the ids are likelier than any token. (Drawn with the
// largest temperature all ids are about as likely.)
TEST_F(GenerateVerb, WritesNoIdThatIsNoToken) {
  const std::string tokens = train_bytes();
  for (const Words& draws : {Words{}, Words{"--temperature", "1000", "--seed", "3"}}) {
    const Outcome outcome = testing::run(
        Words{"generate", model("llama-tiny"), "data.tokenizer=" + tokens, "training.threads=1"} +
        Words{"--prompt", "!!", "--max-new-tokens", "64", "--json"} + draws);
    ASSERT_EQ(outcome.exit_code, 0) << outcome.err;
    const nlohmann::json record = records(outcome.out).at(0);
    // Each byte is a token of its own: an id beyond them would leave no trace in the text. What is
    // no UTF-8 becomes U+FFFD, three bytes.
    EXPECT_GE(record.at("text").get<std::string>().size(), record.at("tokens").get<size_t>());
    EXPECT_GT(record.at("tokens"), 0);
  }
}

// gpt2-tiny has 64 positions.
TEST_F(GenerateVerb, RefusesWhatTheModelHasNoPositionsFor) {
  const Words gpt2 = {"generate", model("gpt2-tiny"), "data.tokenizer=" + train_bytes()};
  const std::string ids(60, '!'); // a token each
  expect_refused(
      gpt2 + Words{"--prompts", write_file("p.txt", "a\n" + ids + "\n"), "--max-new-tokens", "5"},
      "has 64 positions");
  expect_refused(gpt2 + Words{"--prompt", std::string(300, '!')}, "has 64 positions");
  const Outcome rest = testing::run(gpt2 + Words{"--prompt", "!!!", "--json"});
  ASSERT_EQ(rest.exit_code, 0) << rest.err; // as many as there are positions for
  const nlohmann::json record = records(rest.out).at(0);
  EXPECT_EQ(record.at("prompt_tokens").get<int>() + record.at("tokens").get<int>(), 64);
}

TEST_F(GenerateVerb, IsNoWorkForSeveralRanks) {
  setenv("RANK", "0", 1);
  setenv("WORLD_SIZE", "2", 1);
  setenv("LOCAL_RANK", "0", 1);
  setenv("LOCAL_WORLD_SIZE", "2", 1);
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", "29511", 1);
  expect_refused(tiny({"--prompt", "a"}), "one process generates, and this is one of 2 ranks");
  for (const char* name :
       {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}) {
    unsetenv(name);
  }
}

} // namespace
} // namespace palimpsest
