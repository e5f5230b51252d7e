#include <palimpsest/core/io/hf_folder.h>

#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/tests/core/io/testing.h>

#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <set>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr const char* kGolden[] = {"llama-tiny", "llama-tied", "llama3-rope", "llama-bf16-sharded"};

TensorFiller copy_of(const HfFolder& source) {
  return [&source](const StoredTensor& tensor, std::span<std::byte> bytes) {
    const auto from = source.bytes(tensor.name);
    ASSERT_EQ(from.size(), bytes.size());
    std::copy(from.begin(), from.end(), bytes.begin());
  };
}

DecoderConfig config_of(const HfFolder& folder) {
  return parse_decoder_config(folder.config_text(), folder.config_path());
}

/// A folder of one file whose tensors hold the given bytes (as U8, or F32 where their number
/// divides by four).
struct Weight {
  std::string name;
  std::string bytes;
};

void write_weights(const fs::path& file, const std::vector<Weight>& weights) {
  std::vector<TensorDeclaration> declarations;
  for (const Weight& weight : weights) {
    declarations.push_back(
        {weight.name, StoredDtype::F32, {static_cast<int64_t>(weight.bytes.size() / 4)}});
  }
  SafetensorsWriter writer(file, declarations);
  for (const StoredTensor& tensor : writer.tensors()) {
    const auto found = std::find_if(weights.begin(), weights.end(), [&](const Weight& weight) {
      return weight.name == tensor.name;
    });
    writer.write(tensor.name, std::as_bytes(std::span(found->bytes)));
  }
  writer.commit();
}

/// A folder with config.json and one weight file.
struct SmallFolder {
  explicit SmallFolder(const std::vector<Weight>& weights) {
    put(folder / "config.json", "{}");
    write_weights(folder / "model.safetensors", weights);
  }
  TemporaryFolder folder;
};

std::vector<std::string> names(const HfFolder& folder) {
  std::vector<std::string> result;
  for (const auto& [name, entry] : folder.tensors()) {
    result.push_back(name);
  }
  return result;
}

TEST(HfFolder, OpensEveryGoldenModelAndFitsItsConfig) {
  for (const char* name : kGolden) {
    SCOPED_TRACE(name);
    HfFolder folder(golden_model(name));
    const DecoderConfig config = config_of(folder);
    folder.settle_head(config.tie_word_embeddings);
    folder.compare_with(decoder_tensors(config));
    EXPECT_EQ(folder.sharded(), folder.files().size() == 4);
    EXPECT_EQ(folder.tensors().contains(kHeadName), !config.tie_word_embeddings);
    EXPECT_EQ(folder.at("model.norm.weight").dtype, config.dtype);
  }
}

TEST(HfFolder, RoundTripGivesEveryFileBackByteForByte) {
  const TemporaryFolder root;
  for (const char* name : kGolden) {
    SCOPED_TRACE(name);
    const fs::path from = root / "from";
    const fs::path to = root / "to";
    fs::copy(golden_model(name), from, fs::copy_options::recursive);
    fs::remove(from / "config.v5.json");
    fs::remove(from / "golden.json");
    fs::remove(from / "golden.safetensors");
    put(from / "tokenizer.json", "{ \"a\" : 1}\r\n");
    put(from / "generation_config.json", "{}");
    put(from / "chat_template.jinja", "{{ x }}");
    fs::create_directory(from / "additional_chat_templates");
    put(from / "additional_chat_templates" / "rag.jinja", "{{ y }}");

    HfFolder source(from);
    source.settle_head(config_of(source).tie_word_embeddings);
    write_hf_folder(to, layout_like(source), copy_of(source));

    std::set<std::string> expected;
    for (const auto& entry : fs::recursive_directory_iterator(from)) {
      const fs::path relative = fs::relative(entry.path(), from);
      expected.insert(relative.string());
      if (entry.is_regular_file()) {
        EXPECT_EQ(read_file(to / relative), read_file(entry.path())) << relative;
      }
    }
    std::set<std::string> actual;
    for (const auto& entry : fs::recursive_directory_iterator(to)) {
      actual.insert(fs::relative(entry.path(), to).string());
    }
    EXPECT_EQ(actual, expected);
    fs::remove_all(from);
    fs::remove_all(to);
  }
}

TEST(HfFolder, SmallFilesAreThoseOfTheTimeOfOpening) {
  const SmallFolder small({{std::string(kEmbeddingName), "abcdefgh"}});
  const fs::path from = small.folder.path();
  fs::create_directory(from / "additional_chat_templates");
  put(from / "tokenizer.json", "{}");
  put(from / "additional_chat_templates/rag.jinja", "{{ y }}");
  const HfFolder source(from);
  put(from / "tokenizer.json", "of another model");
  fs::remove_all(from / "additional_chat_templates");
  const TemporaryFolder out;
  write_hf_folder(out / "model", layout_like(source), copy_of(source));
  EXPECT_EQ(read_file(out / "model/tokenizer.json"), "{}");
  EXPECT_EQ(read_file(out / "model/additional_chat_templates/rag.jinja"), "{{ y }}");
}

TEST(HfFolder, TiedHeadInEveryForm) {
  const Weight embedding{std::string(kEmbeddingName), "abcdefgh"};
  const Weight same_head{std::string(kHeadName), "abcdefgh"};
  const Weight other_head{std::string(kHeadName), "abcdefgx"};
  for (const auto& weights :
       {std::vector{embedding}, std::vector{same_head}, std::vector{embedding, same_head}}) {
    const SmallFolder small(weights);
    HfFolder folder(small.folder.path());
    folder.settle_head(true);
    EXPECT_THAT(names(folder), ElementsAre(kEmbeddingName));
    const auto bytes = folder.bytes(kEmbeddingName);
    EXPECT_EQ(std::memcmp(bytes.data(), "abcdefgh", 8), 0);

    const TemporaryFolder out;
    write_hf_folder(out / "model", layout_like(folder), copy_of(folder));
    const HfFolder again(out / "model");
    EXPECT_THAT(names(again), ElementsAre(kEmbeddingName));
    EXPECT_EQ(std::memcmp(again.bytes(kEmbeddingName).data(), "abcdefgh", 8), 0);
  }
  const SmallFolder different({embedding, other_head});
  HfFolder folder(different.folder.path());
  EXPECT_THAT(
      message_of<UserError>([&] { folder.settle_head(true); }),
      AllOf(HasSubstr("lm_head.weight"), HasSubstr("differ"), HasSubstr("tie_word_embeddings")));
  EXPECT_EQ(names(folder).size(), 2u);
}

TEST(HfFolder, UntiedModelNeedsItsHead) {
  const SmallFolder small({{std::string(kEmbeddingName), "abcdefgh"}});
  HfFolder folder(small.folder.path());
  folder.settle_head(false);
  const std::vector<TensorDeclaration> expected = {
      {std::string(kEmbeddingName), StoredDtype::F32, {2}},
      {std::string(kHeadName), StoredDtype::F32, {2}},
      {"model.norm.weight", StoredDtype::F32, {1}}};
  EXPECT_THAT(
      message_of<UserError>([&] { folder.compare_with(expected); }),
      AllOf(
          HasSubstr("2 faults"),
          HasSubstr("missing: lm_head.weight [2]; set tie_word_embeddings"),
          HasSubstr("missing: model.norm.weight [1]")));
}

TEST(HfFolder, TiedShardsLoseTheHeadFromFilesAndIndex) {
  const TemporaryFolder root;
  const fs::path from = root / "from";
  fs::create_directory(from);
  put(from / "config.json", "{}");
  write_weights(from / "a.safetensors", {{std::string(kEmbeddingName), "abcdefgh"}});
  write_weights(from / "b.safetensors", {{std::string(kHeadName), "abcdefgh"}});
  put(from / "model.safetensors.index.json",
      R"({"weight_map":{"model.embed_tokens.weight":"a.safetensors","lm_head.weight":"b.safetensors"}})");
  HfFolder source(from);
  source.settle_head(true);
  write_hf_folder(root / "to", layout_like(source), copy_of(source));
  EXPECT_THAT(read_file(root / "to" / "model.safetensors.index.json"), Not(HasSubstr("lm_head")));
  EXPECT_FALSE(fs::exists(root / "to" / "b.safetensors"));
  EXPECT_THAT(names(HfFolder(root / "to")), ElementsAre(kEmbeddingName));
}

TEST(HfFolder, IgnoresBuffersThatTheModelComputes) {
  const SmallFolder small(
      {{"model.layers.0.self_attn.rotary_emb.inv_freq", "abcd"}, {"w", "abcd"}});
  EXPECT_THAT(names(HfFolder(small.folder.path())), ElementsAre("w"));
  const SmallFolder gpt2(
      {{"h.0.attn.bias", "abcd"},
       {"h.0.attn.masked_bias", "abcd"},
       {"h.0.attn.c_attn.bias", "abcd"}});
  EXPECT_THAT(names(HfFolder(gpt2.folder.path())), ElementsAre("h.0.attn.c_attn.bias"));
}

TEST(HfFolder, NamesOfABareModelGetTheBaseAndKeepTheirOwnInFiles) {
  const SmallFolder small({{"wte.weight", "abcd"}, {"lm_head.weight", "abcd"}});
  HfFolder folder(small.folder.path());
  folder.settle_names("transformer.");
  EXPECT_THAT(names(folder), ElementsAre("lm_head.weight", "transformer.wte.weight"));
  EXPECT_EQ(folder.at("transformer.wte.weight").name, "wte.weight");
  EXPECT_EQ(folder.bytes("transformer.wte.weight").size(), 4);
  folder.settle_head(true, "transformer.wte.weight");
  const HfFolderLayout layout = layout_like(folder);
  ASSERT_EQ(layout.files.front().tensors.size(), 1);
  EXPECT_EQ(layout.files.front().tensors.front().name, "wte.weight");
  folder.settle_names("transformer."); // again changes nothing
  EXPECT_THAT(names(folder), ElementsAre("transformer.wte.weight"));
}

TEST(HfFolder, ListsEveryFaultOfIndexAndShardsAtOnce) {
  const TemporaryFolder folder;
  put(folder / "config.json", "{}");
  write_weights(folder / "one.safetensors", {{"a", "abcd"}, {"extra", "abcd"}, {"moved", "abcd"}});
  write_weights(folder / "two.safetensors", {{"b", "abcd"}});
  put(folder / "damaged.safetensors", "short");
  put(folder / "model.safetensors.index.json",
      R"({"metadata":{},"weight_map":{"a":"one.safetensors","b":"two.safetensors",
          "lacking":"two.safetensors","moved":"two.safetensors","gone":"three.safetensors",
          "broken":"damaged.safetensors","up":"../x.safetensors","root":"/etc/passwd","dot":"..",
          "number":5}})");
  EXPECT_THAT(
      message_of<UserError>([&] { HfFolder opened(folder.path()); }),
      AllOf(
          HasSubstr("model.safetensors.index.json"),
          HasSubstr("one.safetensors holds tensor \"extra\", which the index lacks"),
          HasSubstr("tensor \"lacking\" in \"two.safetensors\", which lacks it"),
          HasSubstr("one.safetensors holds tensor \"moved\", which the index places in "
                    "\"two.safetensors\""),
          HasSubstr("three.safetensors: No such file"),
          HasSubstr("damaged.safetensors: 5 bytes are too few"),
          HasSubstr("\"up\" in \"../x.safetensors\""),
          HasSubstr("\"root\" in \"/etc/passwd\""),
          HasSubstr("\"dot\" in \"..\""),
          HasSubstr("no file name for tensor \"number\"")));
}

TEST(HfFolder, RefusesAnIndexThatIsNone) {
  const TemporaryFolder folder;
  put(folder / "config.json", "{}");
  for (const char* text :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{"a":"x","a":"x"}})", "{"}) {
    put(folder / "model.safetensors.index.json", text);
    EXPECT_THAT(
        message_of<UserError>([&] { HfFolder opened(folder.path()); }),
        HasSubstr("model.safetensors.index.json"))
        << text;
  }
}

TEST(HfFolder, SaysWhatAFolderLacks) {
  const TemporaryFolder folder;
  const auto open = [&](const fs::path& path) {
    return message_of<UserError>([&] { HfFolder opened(path); });
  };
  EXPECT_THAT(open(folder / "none"), HasSubstr("is not a folder"));
  EXPECT_THAT(open(folder.path()), HasSubstr("config.json"));
  put(folder / "config.json", "{}");
  EXPECT_THAT(open(folder.path()), HasSubstr("neither model.safetensors nor"));
}

TEST(HfFolder, ListsEveryMissingUnexpectedAndWrongTensorAtOnce) {
  const SmallFolder small({{"a", "abcd"}, {"b", "abcdefgh"}, {"strange", "abcd"}});
  const HfFolder folder(small.folder.path());
  const std::vector<TensorDeclaration> expected = {
      {"a", StoredDtype::F32, {1}},
      {"b", StoredDtype::F32, {1, 2}},
      {"gone.0", StoredDtype::F32, {3}},
      {"gone.1", StoredDtype::F32, {4, 5}}};
  EXPECT_THAT(
      message_of<UserError>([&] { folder.compare_with(expected); }),
      AllOf(
          HasSubstr(small.folder.path().string()),
          HasSubstr("4 faults"),
          HasSubstr("missing: gone.0 [3]"),
          HasSubstr("missing: gone.1 [4, 5]"),
          HasSubstr("unexpected: \"strange\" [1]"),
          HasSubstr("wrong shape: b is [2], config.json asks for [1, 2]"),
          Not(HasSubstr(": a "))));
}

TEST(HfFolder, RefusesWeightsThatAreNoFloats) {
  const TemporaryFolder folder;
  put(folder / "config.json", "{}");
  put(folder / "model.safetensors",
      safetensors_bytes(R"({"w":{"dtype":"I8","shape":[4],"data_offsets":[0,4]}})", "abcd"));
  const std::vector<TensorDeclaration> expected = {{"w", StoredDtype::F32, {4}}};
  EXPECT_THAT(
      message_of<UserError>([&] { HfFolder(folder.path()).compare_with(expected); }),
      HasSubstr("w is I8"));
}

TEST(NewLayout, SplitsAtTheLimitAndNamesAsTransformersDoes) {
  const std::vector<TensorDeclaration> tensors = {
      {"a", StoredDtype::F32, {10}},
      {"b", StoredDtype::F32, {10}},
      {"big", StoredDtype::BF16, {1000}},
      {"c", StoredDtype::F32, {10}}};
  const HfFolderLayout one = new_layout("{}", tensors);
  ASSERT_EQ(one.files.size(), 1u);
  EXPECT_EQ(one.files[0].name, "model.safetensors");
  EXPECT_FALSE(one.sharded);

  const HfFolderLayout three = new_layout("{}", tensors, 80);
  ASSERT_EQ(three.files.size(), 3u);
  EXPECT_EQ(three.files[0].name, "model-00001-of-00003.safetensors");
  EXPECT_EQ(three.files[0].tensors.size(), 2u);
  EXPECT_EQ(three.files[2].tensors.at(0).name, "c");
  EXPECT_TRUE(three.sharded);
}

TEST(WriteHfFolder, WritesANewModelThatOpensAgain) {
  const TemporaryFolder root;
  DecoderConfig config;
  config.vocab_size = 67;
  config.hidden_size = 24;
  config.intermediate_size = 56;
  config.num_hidden_layers = 4;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.tie_word_embeddings = true;
  config = complete_decoder_config(config, "model");
  const HfFolderLayout layout =
      new_layout(write_decoder_config(config), decoder_tensors(config), 30'000);
  int64_t next = 0;
  write_hf_folder(root / "m", layout, [&](const StoredTensor& tensor, std::span<std::byte> bytes) {
    EXPECT_EQ(static_cast<int64_t>(bytes.size()), tensor.elements() * 4);
    std::fill(bytes.begin(), bytes.end(), std::byte(next++));
  });
  HfFolder folder(root / "m");
  EXPECT_TRUE(folder.sharded());
  EXPECT_GT(folder.files().size(), 2u);
  EXPECT_EQ(config_of(folder), config);
  folder.settle_head(true);
  folder.compare_with(decoder_tensors(config));
  EXPECT_EQ(next, static_cast<int64_t>(folder.tensors().size()));
}

/// Files of this process may not grow beyond `bytes` while it lives; the write fails instead of
/// raising a signal.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  FileSizeLimit(FileSizeLimit&&) = delete;
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int);
};

TEST(WriteHfFolder, LeavesTheOldFolderWhereTheDiskIsFull) {
  const TemporaryFolder root;
  const HfFolder source(golden_model("llama-tiny"));
  write_hf_folder(root / "m", new_layout("old", {}), copy_of(source));
  {
    const FileSizeLimit limit(100'000);
    EXPECT_THAT(
        message_of<EnvironmentError>([&] {
          write_hf_folder(root / "m", layout_like(source), copy_of(source), Existing::kReplace);
        }),
        AllOf(HasSubstr("model.safetensors"), HasSubstr("File too large")));
  }
  EXPECT_EQ(read_file(root / "m" / "config.json"), "old");
  EXPECT_EQ(std::distance(fs::directory_iterator(root.path()), {}), 1);
}

TEST(WriteHfFolder, NamesAnOutputThatCannotBeWritten) {
  const HfFolder source(golden_model("llama-tied"));
  EXPECT_THAT(
      message_of<EnvironmentError>(
          [&] { write_hf_folder("/proc/model", layout_like(source), copy_of(source)); }),
      HasSubstr("/proc/model"));
}

} // namespace
} // namespace palimpsest
