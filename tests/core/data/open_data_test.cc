#include <palimpsest/core/data/open_data.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tokenizer/tokenizer.h>
#include <palimpsest/tests/core/data/read_sample.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/support/python/python.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <random>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using JinjaOpenData = NeedsJinja;

std::string tensors_of(const std::vector<int64_t>& ids, int64_t rows) {
  const auto width = static_cast<int64_t>(ids.size()) / rows;
  return safetensors_text(
      {test_tensor("input_ids", "I64", {rows, width}, ids),
       test_tensor("labels", "I64", {rows, width}, ids)});
}

TEST(OpenData, JoinsFilesOfAllFormats) {
  const TemporaryFolder folder;
  const std::vector<uint16_t> first = {1, 2, 3, 4, 5, 6};
  const std::vector<uint16_t> second = {7, 8, 9};
  const OpenedData data = open_data(
      {.files =
           {{folder.write<uint16_t>("a.bin", first)},
            {folder.write<uint16_t>("b", second), "tokens"},
            {folder.write("c.txt", "ab")},
            {folder.write("d.txt", "cd")},
            {folder.write("e.safetensors", tensors_of({10, 11, 12}, 1))}},
       .sequence_length = 3,
       .vocabulary_size = 256});
  ASSERT_EQ(data.samples->size(), 5);
  const std::vector<Ids> expected = {
      {1, 2, 3}, {4, 5, 6}, {7, 8, 9}, {'a', 'b', 'c'}, {10, 11, 12}};
  for (int64_t k = 0; k < 5; ++k) {
    EXPECT_EQ(read_sample(*data.samples, k).inputs, expected[static_cast<size_t>(k)]);
  }
  ASSERT_EQ(data.notes.size(), 1);
  EXPECT_THAT(data.notes[0], HasSubstr("the last 1 of 4 bytes"));
}

TEST(OpenData, RefusesWhatDoesNotFit) {
  const TemporaryFolder folder;
  const auto refused = [](const DataSettings& settings, const std::string& part) {
    EXPECT_THAT([&] { open_data(settings); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  const auto three = folder.write("three.safetensors", tensors_of({1, 2, 3}, 1));
  const auto two = folder.write("two.safetensors", tensors_of({1, 2}, 1));
  refused({.vocabulary_size = 256}, "data.files: no file");
  refused(
      {.files = {{"a.csv"}}, .vocabulary_size = 256},
      "the ending of a.csv is unknown; give one of tokens (.bin), tensors (.safetensors), text "
      "(.txt), messages (.jsonl, .json), sharegpt, alpaca, prompt_completion");
  refused(
      {.files = {{"a.bin", "parquet"}}, .vocabulary_size = 256}, "\"parquet\" of a.bin is unknown");
  refused({.files = {{three}, {two}}, .vocabulary_size = 256}, "samples of 3 and of 2 elements");
  refused(
      {.files = {{"a.bin"}}, .sequence_length = 4, .input_size = 2, .output_size = 1},
      "the model reads features");
  refused({.files = {{three}}, .input_size = 2, .output_size = 1}, "no tensor inputs");
  refused(
      {.files = {{three}}, .sequence_length = 4, .input_size = 2, .output_size = 1},
      "data.sequence_length: 4 is given, but");
}

/// The text of a sample's targets, and what is not one as "~".
std::string targets(const SampleSource& samples, int64_t sample, const Tokenizer& tokenizer) {
  std::string text;
  for (const int64_t id : read_sample(samples, sample).labels) {
    const auto token = static_cast<int32_t>(id);
    text += id < 0 ? "~" : tokenizer.decode(std::span(&token, 1), SpecialTokens::kAdd);
  }
  return text;
}

constexpr const char* kChat =
    "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":"
    "\"b\"},"
    "{\"role\":\"user\",\"content\":\"c\"},{\"role\":\"assistant\",\"content\":\"d\"}]}\n";

const std::filesystem::path kQwen =
    std::filesystem::path(PALIMPSEST_TEST_DATA) / "tokenizers/qwen2-512";

TEST_F(JinjaOpenData, ReadsConversationsUnderTheModelsTemplate) {
  const TemporaryFolder folder;
  const auto path = folder.write("chat.jsonl", kChat);
  const Tokenizer tokenizer(kQwen);
  const auto learnt = [&](const DataSettings& settings) {
    const OpenedData data = open_data(settings);
    EXPECT_EQ(data.samples->size(), 1);
    std::string text = targets(*data.samples, 0, tokenizer);
    std::erase(text, '~');
    return text;
  };
  DataSettings settings{
      .files = {{path}}, .sequence_length = 100, .vocabulary_size = 600, .tokenizer = kQwen};
  EXPECT_EQ(learnt(settings), "b<|im_end|>d<|im_end|>");
  settings.loss_on = LossOn::kLast;
  EXPECT_EQ(learnt(settings), "d<|im_end|>");
  settings.loss_on = LossOn::kAll;
  settings.chat_template = "plain";
  EXPECT_EQ(learnt(settings), "\nb<|im_end|>\nc\nd<|im_end|>\n"); // nothing predicts the first
}

TEST(OpenData, ReadsEveryFormatOfRecords) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(kQwen);
  const DataSettings settings{
      .files =
          {{folder.write("a.json", "[{\"question\":\"p\",\"completion\":\" c\"}]"),
            "prompt_completion"}},
      .sequence_length = 100,
      .vocabulary_size = 600,
      .tokenizer = kQwen,
      .columns = {{"prompt", "question"}}};
  const OpenedData completion = open_data(settings);
  EXPECT_THAT(targets(*completion.samples, 0, tokenizer), testing::StartsWith(" c<|im_end|>~"));

  DataSettings alpaca{
      .files = {{folder.write("b.jsonl", "{\"instruction\":\"i\",\"output\":\"o\"}"), "alpaca"}},
      .sequence_length = 100,
      .vocabulary_size = 600,
      .tokenizer = std::filesystem::path(PALIMPSEST_TEST_DATA) / "tokenizers/gpt2-512"};
  const Tokenizer gpt2(alpaca.tokenizer); // which brings no template
  EXPECT_THAT(targets(*open_data(alpaca).samples, 0, gpt2), HasSubstr("~o<|endoftext|>~"));
  alpaca.files[0].format = "messages";
  EXPECT_THAT(
      [&] { open_data(alpaca); }, ThrowsMessage<UserError>(HasSubstr("b.jsonl:1: the key")));
  alpaca.files = {{folder.write("c.jsonl", kChat)}};
  EXPECT_THAT(
      [&] { open_data(alpaca); },
      ThrowsMessage<UserError>(HasSubstr("c.jsonl:1: conversations need a chat template")));
}

TEST(OpenData, GivesEachFormatItsColumns) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(kQwen);
  DataSettings settings{
      .files =
          {{folder.write("a.json", "[{\"question\":\"p\",\"completion\":\" c\"}]"),
            "prompt_completion"},
           {folder.write("b.jsonl", "{\"instruction\":\"i\",\"answer\":\"o\"}"), "alpaca"}},
      .sequence_length = 100,
      .vocabulary_size = 600,
      .tokenizer = kQwen,
      .chat_template = "plain",
      .columns = {{"prompt", "question"}, {"output", "answer"}}};
  const OpenedData data = open_data(settings);
  EXPECT_THAT(targets(*data.samples, 0, tokenizer), HasSubstr("~ c<|im_end|>~"));
  EXPECT_THAT(targets(*data.samples, 1, tokenizer), HasSubstr("~o<|im_end|>~"));
  settings.columns["text"] = "t";
  EXPECT_THAT(
      [&] { open_data(settings); },
      ThrowsMessage<UserError>(HasSubstr(
          "data.columns.text: prompt_completion, alpaca has no such column; it has prompt, "
          "completion, instruction, input, output, system, history")));
}

TEST(OpenData, StreamsTextThroughTheTokenizer) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(kQwen);
  DataSettings settings{
      .files =
          {{folder.write("a.txt", "one two three four five six")},
           {folder.write("b.jsonl", "{\"text\":\"seven\"}\n{\"text\":\"eight\"}\n"), "text"}},
      .sequence_length = 6,
      .vocabulary_size = 600,
      .tokenizer = kQwen};
  const auto whole = [&] {
    std::string text;
    const OpenedData data = open_data(settings);
    for (int64_t k = 0; k < data.samples->size(); ++k) {
      for (const int64_t id : read_sample(*data.samples, k).inputs) {
        const auto token = static_cast<int32_t>(id);
        text += tokenizer.decode(std::span(&token, 1), SpecialTokens::kAdd);
      }
    }
    return text;
  };
  EXPECT_THAT(whole(), testing::StartsWith("one two three four"));
  EXPECT_THAT(whole(), HasSubstr("seven<|im_end|>"));
  settings.packing = true;
  EXPECT_TRUE(open_data(settings).samples->packed());
  settings.tokenizer.clear();
  settings.packing = false;
  settings.files.pop_back();
  EXPECT_EQ(
      read_sample(*open_data(settings).samples, 0).inputs, (Ids{'o', 'n', 'e', ' ', 't', 'w'}));
}

TEST(OpenData, SplitsAndWeighsSources) {
  const TemporaryFolder folder;
  std::vector<uint16_t> ids(200);
  std::iota(ids.begin(), ids.end(), 0);
  DataSettings settings{
      .files =
          {{folder.write<uint16_t>("a.bin", ids)},
           {folder.write<uint16_t>("b.bin", std::span(ids).first(20))},
           {folder.write<uint16_t>("c.bin", std::span(ids).first(40)), "tokens", 2.5}},
      .sequence_length = 2,
      .vocabulary_size = 300};
  const OpenedData all = open_data(settings);
  ASSERT_EQ(all.mixture.size(), 2); // neighbours of one format and weight are one source
  EXPECT_EQ(all.mixture[0].samples, 110);
  EXPECT_EQ(all.mixture[1].samples, 20);
  EXPECT_EQ(all.mixture[1].weight, 2.5);
  EXPECT_EQ(all.samples->size(), 130);
  EXPECT_EQ(all.validation, nullptr);

  settings.validation_fraction = 0.1;
  settings.seed = 5;
  const OpenedData split = open_data(settings);
  EXPECT_EQ(split.mixture[0].samples, 99);
  EXPECT_EQ(split.mixture[1].samples, 18);
  ASSERT_NE(split.validation, nullptr);
  EXPECT_EQ(split.validation->size(), 11 + 2);
  std::vector<Ids> parts;
  for (const SampleSource* source : {split.samples.get(), split.validation.get()}) {
    for (int64_t k = 0; k < source->size(); ++k) {
      parts.push_back(read_sample(*source, k).inputs);
    }
  }
  std::vector<Ids> expected;
  for (int64_t k = 0; k < all.samples->size(); ++k) {
    expected.push_back(read_sample(*all.samples, k).inputs);
  }
  std::ranges::sort(parts);
  std::ranges::sort(expected);
  EXPECT_EQ(parts, expected);

  settings.validation_fraction.reset();
  settings.validation_files = {{folder.write<uint16_t>("d.bin", std::span(ids).first(6))}};
  EXPECT_EQ(open_data(settings).validation->size(), 3);
  EXPECT_EQ(open_data(settings).samples->size(), 130);
}

TEST(OpenData, RefusesWhatIsMissingOrIdle) {
  const TemporaryFolder folder;
  const auto chat = folder.write("chat.jsonl", kChat);
  const auto text = folder.write("a.txt", "some text");
  const auto refused = [](DataSettings settings, const std::string& part) {
    settings.sequence_length = 4;
    settings.vocabulary_size = 600;
    EXPECT_THAT([&] { open_data(settings); }, ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused({.files = {{chat}}}, "data.tokenizer: " + chat.string() + " needs a tokenizer");
  refused({.files = {{chat}}, .tokenizer = folder.path()}, "holds no tokenizer.json");
  refused(
      {.files = {{text}}, .loss_on = LossOn::kLast}, "data.loss_on is given, but no file holds");
  refused(
      {.files = {{text}}, .chat_template = "plain"}, "data.chat_template is given, but no file");
  refused({.files = {{text}}, .columns = {{"text", "t"}}}, "data.columns is given, but no file");
  refused({.files = {{text}}, .packing = true}, "data.packing is given, but no file");
  refused(
      {.files = {{chat}}, .tokenizer = kQwen.parent_path() / "qwen2-2000"},
      "qwen2-2000 has 2000 tokens, and the model's vocabulary 600; name the folder of");
  refused(
      {.files = {{folder.write("b.txt", "abcdef")}}, .validation_fraction = 0.9},
      "b.txt has one sample, of which nothing can be held out");
  const auto parquet = folder.write("a.parquet", "PAR1");
  refused(
      {.files = {{parquet, "alpaca"}}, .tokenizer = kQwen, .chat_template = "plain"},
      "is Parquet, which is not read; convert it first: python3 -c");
  refused(
      {.files = {{parquet, "alpaca"}}, .tokenizer = kQwen, .chat_template = "plain"},
      "a.jsonl', orient='records'");
}

// It goes with the trained model, so it has to be there and to fit, whether or not the data need it.
TEST(OpenData, ATokenizerThatIsNamedIsMissedWhateverTheFilesAre) {
  const TemporaryFolder folder;
  const std::vector<uint16_t> ids(400, 7);
  const std::vector<DataFile> files = {
      {folder.write("a.txt", std::string(4000, 'a'))},
      {folder.write<uint16_t>("a.bin", std::span(ids))},
      {folder.write("chat.jsonl", kChat)}};
  for (const DataFile& file : files) {
    SCOPED_TRACE(file.path);
    DataSettings settings{
        .files = {file},
        .sequence_length = 100,
        .vocabulary_size = 600,
        .tokenizer_named = true,
        .chat_template = file.path.extension() == ".jsonl" ? "chatml" : ""};
    const auto refused = [&](const std::filesystem::path& tokenizer, const std::string& words) {
      settings.tokenizer = tokenizer;
      EXPECT_THAT([&] { open_data(settings); }, ThrowsMessage<UserError>(HasSubstr(words)));
    };
    refused(
        folder.path() / "none",
        "data.tokenizer: " + (folder.path() / "none").string() + " is neither a folder nor a");
    refused(
        folder.path(), "data.tokenizer: " + folder.path().string() + " holds no tokenizer.json");
    refused(kQwen.parent_path() / "qwen2-2000", "data.tokenizer: the tokenizer of");
    settings.tokenizer = kQwen;
    EXPECT_GT(open_data(settings).samples->size(), 0);
  }
}

TEST(OpenData, NamesTheOptionThatNamedTheFile) {
  const TemporaryFolder folder;
  const auto text = folder.write("a.txt", "some text");
  const auto refused = [&](const std::string& name, const std::string& bytes) {
    const auto path = folder.write(name, bytes);
    const DataFile file{.path = path, .option = "data.validation.files"};
    const DataSettings settings{
        .files = {{text}},
        .sequence_length = 4,
        .vocabulary_size = 600,
        .tokenizer = kQwen,
        .chat_template = "plain",
        .validation_files = {file}};
    EXPECT_THAT(
        [&] { open_data(settings); },
        ThrowsMessage<UserError>(testing::StartsWith("data.validation.files: " + path.string())));
  };
  refused("empty.txt", "");
  refused("empty.jsonl", "");
  refused("empty.bin", "");
  refused("none.jsonl", "\n");
  refused("three.bin", "abc");
  refused("other.safetensors", "no tensors");
  refused("a.jsonl", "PAR1");
  DataSettings mixed{
      .files = {{text}},
      .sequence_length = 3,
      .vocabulary_size = 256,
      .validation_files = {
          {.path = text, .option = "--data"},
          {.path = folder.write("b.safetensors", tensors_of({1, 2}, 1)), .option = "--data"}}};
  mixed.validation_files[0].format = "text";
  EXPECT_THAT([&] { open_data(mixed); }, ThrowsMessage<UserError>(HasSubstr("contradicts")));
  mixed.files = {
      {folder.write("c.safetensors", tensors_of({1, 2, 3}, 1))},
      {folder.write("d.safetensors", tensors_of({1, 2}, 1))}};
  mixed.sequence_length.reset();
  mixed.validation_files.clear();
  mixed.files[0].option = mixed.files[1].option = "data.sources";
  EXPECT_THAT(
      [&] { open_data(mixed); },
      ThrowsMessage<UserError>(
          testing::StartsWith("data.sources: samples of 3 and of 2 elements")));
}

// As of a run that is evaluated on other files than its own.
TEST(OpenData, NotesSettingsWithoutAUseWhereTheyAreAnothersOwn) {
  const TemporaryFolder folder;
  DataSettings settings{
      .files = {{folder.write("a.txt", "some text and some more")}},
      .sequence_length = 4,
      .vocabulary_size = 600,
      .tokenizer = kQwen,
      .chat_template = "no/such/template",
      .columns = {{"role", "from"}},
      .loss_on = LossOn::kLast,
      .unused = Unused::kNote};
  const std::vector<std::string> notes = open_data(settings).notes;
  for (const char* key : {"data.chat_template", "data.columns", "data.loss_on"}) {
    EXPECT_THAT(
        notes,
        testing::Contains(testing::StartsWith(key + std::string(" has no use here: no file"))));
  }
  settings.files = {{folder.write("b.jsonl", "{\"text\":\"some text and some more\"}"), "text"}};
  EXPECT_THAT(
      open_data(settings).notes,
      testing::Contains("data.columns.role has no use here: text has no such column"));
}

/// Random damage to valid files: opened and readable, or refused with a message; never anything
/// else.
TEST(OpenData, SurvivesDamagedFiles) {
  const TemporaryFolder folder;
  const bool full = std::getenv("PALIMPSEST_FULL") != nullptr;
  std::mt19937 random(20240607);
  const std::string tensors = tensors_of({1, 2, 3, 4, 5, 6, 7, 8}, 2);
  const std::vector<uint16_t> ids = {1, 2, 3, 4, 5, 6, 7, 8};
  const std::string tokens(reinterpret_cast<const char*>(ids.data()), 16);
  int opened = 0;
  int refused = 0;
  for (int round = 0; round < (full ? 20'000 : 600); ++round) {
    const bool as_tensors = round % 3 != 0;
    std::string bytes = as_tensors ? tensors : tokens;
    for (auto edits = random() % 4; edits > 0 && !bytes.empty(); --edits) {
      const size_t place = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[place] = static_cast<char>(random());
          break;
        case 1:
          bytes.erase(place, 1 + random() % 8);
          break;
        case 2:
          bytes.insert(place, 1 + random() % 3, static_cast<char>(random()));
          break;
        default:
          bytes.resize(place);
      }
    }
    const DataSettings settings{
        .files = {{folder.write(as_tensors ? "f.safetensors" : "f.bin", bytes)}},
        .sequence_length = 4,
        .vocabulary_size = 9};
    try {
      const OpenedData data = open_data(settings);
      for (int64_t k = 0; k < data.samples->size(); ++k) {
        for (const int64_t id : read_sample(*data.samples, k).inputs) {
          ASSERT_TRUE(id >= 0 && id < 9);
        }
      }
      ++opened;
    } catch (const UserError& error) {
      ASSERT_THAT(error.what(), HasSubstr("data."));
      ++refused;
    }
  }
  EXPECT_GT(opened, 100);
  EXPECT_GT(refused, 100);
}

} // namespace
} // namespace palimpsest
