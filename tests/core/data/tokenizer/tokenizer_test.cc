#include <palimpsest/core/data/tokenizer/tokenizer.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/core/data/tokenizer/golden.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

class GoldenTokenizer : public testing::TestWithParam<const char*> {};

INSTANTIATE_TEST_SUITE_P(
    Tokenizers,
    GoldenTokenizer,
    testing::ValuesIn(kGoldenTokenizers),
    [](const auto& test) {
      std::string name = test.param;
      std::ranges::replace(name, '-', '_');
      return name;
    });

TEST_P(GoldenTokenizer, EncodesAndDecodesAsTheReference) {
  const Tokenizer tokenizer(golden_folder(GetParam()));
  Encoder encoder(tokenizer);
  const nlohmann::json all = golden_cases(GetParam(), "cases.json");
  ASSERT_GE(all.size(), 388);
  for (const auto& one : all) {
    SCOPED_TRACE(one.at("text").dump());
    const auto text = one.at("text").get<std::string>();
    Ids ids;
    encoder.encode(text, SpecialTokens::kAdd, ids);
    EXPECT_EQ(ids, one.at("ids").get<Ids>());
    Ids plain;
    encoder.encode(text, SpecialTokens::kNone, plain);
    EXPECT_EQ(plain, one.at("ids_plain").get<Ids>());
    EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kAdd), one.at("decoded").get<std::string>());
    EXPECT_EQ(
        tokenizer.decode(ids, SpecialTokens::kNone), one.at("decoded_skip").get<std::string>());
  }
}

TEST_P(GoldenTokenizer, DecodesAnyIds) {
  const Tokenizer tokenizer(golden_folder(GetParam()));
  for (const auto& one : golden_cases(GetParam(), "decode_cases.json")) {
    const Ids ids = one.at("ids").get<Ids>();
    SCOPED_TRACE(one.at("ids").dump());
    EXPECT_EQ(tokenizer.decode(ids, SpecialTokens::kAdd), one.at("decoded").get<std::string>());
    EXPECT_EQ(
        tokenizer.decode(ids, SpecialTokens::kNone), one.at("decoded_skip").get<std::string>());
  }
}

/// All texts of the cases, and all of them joined, cut wherever it is allowed: the parts' tokens are
/// the whole's.
TEST_P(GoldenTokenizer, EncodesPartsAsTheWhole) {
  const Tokenizer tokenizer(golden_folder(GetParam()));
  Encoder encoder(tokenizer);
  std::string joined;
  std::vector<std::string> texts;
  for (const auto& one : golden_cases(GetParam(), "cases.json")) {
    texts.push_back(one.at("text").get<std::string>());
    joined += texts.back() + "end of it\nnext ";
  }
  texts.push_back(joined);
  int64_t cuts = 0;
  for (const std::string& text : texts) {
    SCOPED_TRACE(text);
    Ids whole;
    encoder.encode_part(text, /*continued=*/false, whole);
    size_t seen = text.size();
    for (std::optional<size_t> at = tokenizer.last_cut(text); at;
         at = tokenizer.last_cut(text.substr(0, seen))) {
      ASSERT_GT(*at, 0);
      ASSERT_LT(*at, seen);
      seen = *at;
      if (++cuts % 20 != 0 && text.size() > 1000) {
        continue; // the long one: a sample
      }
      Ids parts;
      encoder.encode_part(text.substr(0, *at), /*continued=*/false, parts);
      encoder.encode_part(text.substr(*at), /*continued=*/true, parts);
      ASSERT_EQ(parts, whole) << *at;
    }
  }
  EXPECT_GT(cuts, 1000);
}

TEST_P(GoldenTokenizer, GrowsTextTokenByToken) {
  const Tokenizer tokenizer(golden_folder(GetParam()));
  const auto check_stream = [&](const nlohmann::json& one) {
    DecoderStream stream = tokenizer.decoder_stream();
    std::string text;
    for (const int32_t id : one.at("ids").get<Ids>()) {
      const std::string piece = stream.push(id);
      // What is shown is never half a character.
      EXPECT_NO_THROW(nlohmann::json(piece).dump());
      text += piece;
    }
    EXPECT_EQ(text + stream.finish(), one.at("decoded").get<std::string>());
  };
  for (const auto& one : golden_cases(GetParam(), "decode_cases.json")) {
    check_stream(one);
  }
  for (const auto& one : golden_cases(GetParam(), "cases.json")) {
    check_stream(one);
  }
}

TEST(Tokenizer, KnowsItsTokens) {
  const Tokenizer tokenizer(golden_folder("qwen2-512"));
  EXPECT_EQ(tokenizer.vocabulary_size(), 512);
  EXPECT_EQ(tokenizer.beginning(), std::nullopt);
  EXPECT_EQ(tokenizer.end(), 509);
  EXPECT_EQ(tokenizer.padding(), 507);
  EXPECT_EQ(tokenizer.id("<|im_start|>"), 508);
  EXPECT_EQ(tokenizer.id("no token"), std::nullopt);
  EXPECT_EQ(tokenizer.token(509), "<|im_end|>");
  EXPECT_EQ(tokenizer.token(512), "");
  EXPECT_EQ(tokenizer.token(-1), "");
  EXPECT_TRUE(tokenizer.is_special(509));
  EXPECT_FALSE(tokenizer.is_special(510)); // <tool_call>
  EXPECT_FALSE(tokenizer.is_special(0));
  const Tokenizer llama(golden_folder("llama2-2000"));
  EXPECT_EQ(llama.beginning(), 1);
  EXPECT_EQ(llama.unknown(), 0);
  EXPECT_EQ(llama.prefix(), (Ids{1}));
  EXPECT_EQ(llama.suffix(), (Ids{2}));
}

TEST(Tokenizer, ReadsVocabularyAndMergesAlone) {
  const TemporaryFolder folder;
  for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"}) {
    std::filesystem::copy_file(golden_folder("gpt2-512") / name, folder.path() / name);
  }
  const Tokenizer tokenizer(folder.path());
  for (const auto& one : golden_cases("gpt2-512", "cases.json")) {
    EXPECT_EQ(encoded(tokenizer, one.at("text")), one.at("ids_plain").get<Ids>());
  }
}

/// What a config names for an end is one token in text, also where the file does not list it; GPT-2's
/// older form has one without being told.
TEST(Tokenizer, FindsItsRolesInText) {
  const TemporaryFolder folder;
  nlohmann::json vocabulary =
      nlohmann::json::parse(read_file(golden_folder("gpt2-512") / "vocab.json"));
  vocabulary["<|endoftext|>"] = 511;
  folder.write("vocab.json", vocabulary.dump());
  std::filesystem::copy_file(
      golden_folder("gpt2-512") / "merges.txt", folder.path() / "merges.txt");
  const Tokenizer plain(folder.path());
  EXPECT_EQ(plain.end(), 511);
  EXPECT_EQ(encoded(plain, "<|endoftext|>"), (Ids{511}));
  EXPECT_EQ(plain.decode(Ids{511}, SpecialTokens::kNone), "");
  folder.write("tokenizer_config.json", R"({"eos_token": "er"})");
  const Tokenizer other(folder.path());
  EXPECT_EQ(other.end(), vocabulary.at("er").get<int32_t>());
  EXPECT_EQ(other.beginning(), 511);
  EXPECT_EQ(encoded(other, "xerx").at(1), other.end());
}

TEST(Tokenizer, RestoresEveryByteOfByteLevelText) {
  const Tokenizer gpt2(golden_folder("gpt2-512"));
  std::string text;
  for (uint32_t code = 0; code < 0x800; ++code) {
    text += code < 0x80
        ? std::string(1, static_cast<char>(code))
        : std::string{static_cast<char>(0xc0 | code >> 6), static_cast<char>(0x80 | (code & 0x3f))};
  }
  EXPECT_EQ(gpt2.decode(encoded(gpt2, text), SpecialTokens::kAdd), text);
  // Without a normalizer the two ways to write é differ, with NFC they do not.
  EXPECT_NE(encoded(gpt2, "e\xcc\x81"), encoded(gpt2, "\xc3\xa9"));
  const Tokenizer qwen2(golden_folder("qwen2-512"));
  EXPECT_EQ(encoded(qwen2, "e\xcc\x81"), encoded(qwen2, "\xc3\xa9"));
}

TEST(Tokenizer, RefusesWhatIsNoUtf8) {
  const Tokenizer tokenizer(golden_folder("gpt2-512"));
  for (const char* text :
       {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xc0\xaf", "ab\xf4\x90\x80\x80"}) {
    EXPECT_THAT(
        [&] { encoded(tokenizer, text); }, ThrowsMessage<UserError>(HasSubstr("byte 3 (0x")));
  }
}

/// A copy of a golden tokenizer with a change to its tokenizer.json or tokenizer_config.json.
std::filesystem::path changed(
    const TemporaryFolder& folder,
    const std::string& name,
    const std::function<void(nlohmann::json& tokenizer, nlohmann::json& config)>& change) {
  nlohmann::json tokenizer = golden_json(name);
  nlohmann::json config =
      nlohmann::json::parse(read_file(golden_folder(name) / "tokenizer_config.json"));
  change(tokenizer, config);
  folder.write("tokenizer.json", tokenizer.dump());
  folder.write("tokenizer_config.json", config.dump());
  return folder.path();
}

TEST(Tokenizer, TakesTheTemplateThatTheConfigWants) {
  const TemporaryFolder folder;
  const auto template_of = [&](const std::string& name, const char* key, bool value) {
    const Tokenizer tokenizer(
        changed(folder, name, [&](auto& /*tokenizer*/, auto& config) { config[key] = value; }));
    return encoded(tokenizer, "", SpecialTokens::kAdd);
  };
  EXPECT_EQ(template_of("llama2-512", "add_bos_token", true), (Ids{1}));
  EXPECT_EQ(template_of("llama2-512", "add_bos_token", false), (Ids{}));
  EXPECT_EQ(template_of("llama2-512", "add_eos_token", true), (Ids{1, 2}));
  EXPECT_EQ(template_of("llama2-2000", "add_eos_token", false), (Ids{1}));
}

TEST(Tokenizer, AddsTokensThatOnlyTheConfigHas) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(changed(folder, "gpt2-512", [](auto& /*tokenizer*/, auto& config) {
    config["added_tokens_decoder"]["600"] = {{"content", "<new>"}, {"special", true}};
  }));
  EXPECT_EQ(encoded(tokenizer, "<new>"), (Ids{600}));
  EXPECT_EQ(tokenizer.vocabulary_size(), 601);
  EXPECT_EQ(tokenizer.decode(Ids{600, 550}, SpecialTokens::kAdd), "<new>");
}

TEST(Tokenizer, RefusesByName) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::function<void(nlohmann::json&, nlohmann::json&)>& change,
                           const std::string& part) {
    EXPECT_THAT(
        [&] { Tokenizer(changed(folder, "llama3-512", change)); },
        ThrowsMessage<UserError>(HasSubstr(part)));
  };
  refused(
      [](auto& t, auto&) { t["model"]["type"] = "Unigram"; },
      "tokenizer.json: model.type is \"Unigram\"; only BPE");
  refused(
      [](auto& t, auto&) {
        t["normalizer"] = {{"type", "Lowercase"}};
      },
      "normalizer.type is \"Lowercase\"");
  refused(
      [](auto& t, auto&) {
        t["pre_tokenizer"]["pretokenizers"][0] = {{"type", "BertPreTokenizer"}};
      },
      "pre_tokenizer.pretokenizers[0].type is \"BertPreTokenizer\"");
  refused(
      [](auto& t, auto&) { t["post_processor"]["processors"][1]["type"] = "BertProcessing"; },
      "post_processor.processors[1].type is \"BertProcessing\"");
  refused(
      [](auto& t, auto&) {
        t["decoder"] = {{"type", "WordPiece"}};
      },
      "decoder.type is \"WordPiece\"");
  refused([](auto& t, auto&) { t.erase("model"); }, "tokenizer.json: model");
  refused(
      [](auto& t, auto&) { t["added_tokens"][0]["id"] = 3; },
      "the added token \"<|begin_of_text|>\" has the id 3, but that is ");
  refused(
      [](auto&, auto& c) { c["eos_token"] = "<none>"; },
      "tokenizer_config.json: eos_token is \"<none>\", which is not among the tokens");
  refused(
      [](auto&, auto& c) { c["eos_token"] = 7; },
      "tokenizer_config.json: eos_token is 7; give a text");
  refused(
      [](auto& t, auto&) { t["post_processor"]["processors"][1]["special_tokens"].clear(); },
      "post_processor.processors[1].special_tokens has no <|begin_of_text|>");
}

TEST(Tokenizer, RefusesTextThatNoTokenStandsFor) {
  const TemporaryFolder folder;
  const Tokenizer tokenizer(changed(folder, "llama2-512", [](auto& t, auto&) {
    t["model"]["byte_fallback"] = false;
    t["model"]["unk_token"] = nullptr;
  }));
  EXPECT_THAT(
      [&] { encoded(tokenizer, "a\xe2\x98\x83"); },
      ThrowsMessage<UserError>(HasSubstr("stands for \"\xe2\x98\x83\"")));
}

} // namespace
} // namespace palimpsest
