#include <palimpsest/core/data/tokenizer/decoder.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;
using Json = nlohmann::json;

/// What each token gives, and the end.
std::vector<std::string> pieces(const Json& json, const std::vector<std::string>& tokens) {
  const Decoder decoder(Component(json, "m/tokenizer.json", "decoder"), tokens);
  DecoderStream stream(decoder);
  std::vector<std::string> texts;
  for (size_t id = 0; id < tokens.size(); ++id) {
    texts.push_back(stream.push(static_cast<int32_t>(id)));
  }
  texts.push_back(stream.finish());
  return texts;
}

const std::string kMark = "\xe2\x96\x81"; // NOLINT: a literal
const std::string kBroken = "\xef\xbf\xbd"; // NOLINT

Json llama() {
  return {
      {"type", "Sequence"},
      {"decoders",
       {{{"type", "Replace"}, {"pattern", {{"String", kMark}}}, {"content", " "}},
        {{"type", "ByteFallback"}},
        {{"type", "Fuse"}},
        {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}}}}};
}

TEST(Decoder, HoldsBackHalfCharacters) {
  // The three bytes of the euro sign in two tokens, then the first of another one.
  EXPECT_THAT(
      pieces(
          {{"type", "ByteLevel"}},
          {"\xc4\xa0"
           "a",
           "\xc3\xa2\xc4\xa4",
           "\xc2\xac"
           "b",
           "\xc3\xa2"}),
      ElementsAre(
          " a",
          "",
          "\xe2\x82\xac"
          "b",
          "",
          kBroken));
}

TEST(Decoder, PutsBytesOfCharactersTogether) {
  EXPECT_THAT(
      pieces(llama(), {kMark + "a", "<0xE4>", "<0xBD>", "<0xA0>", kMark + "b", "<0x0A>"}),
      ElementsAre("a", "", "", "", "\xe4\xbd\xa0 b", "", "\n"));
  EXPECT_THAT(
      pieces(llama(), {"<0xE4>", "<0xBD>", "c", "<0xff>"}),
      ElementsAre("", "", kBroken + kBroken + "c", "", kBroken));
}

TEST(Decoder, StripsTheStartOnly) {
  EXPECT_THAT(pieces(llama(), {kMark, kMark, "a"}), ElementsAre("", " ", "a", ""));
  EXPECT_THAT(pieces(llama(), {"a", kMark}), ElementsAre("a", " ", ""));
}

TEST(Decoder, ReadsMetaspace) {
  const Json metaspace{{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", "always"}};
  EXPECT_THAT(pieces(metaspace, {kMark + "a" + kMark, kMark + "b"}), ElementsAre("a", " b", ""));
  const Json never{{"type", "Metaspace"}, {"replacement", kMark}, {"prepend_scheme", "never"}};
  EXPECT_THAT(pieces(never, {kMark + "a"}), ElementsAre(" a", ""));
}

TEST(Decoder, PutsSpacesBetweenTokensWithoutRules) {
  EXPECT_THAT(pieces(nullptr, {"a", "b"}), ElementsAre("a", " b", ""));
}

TEST(Decoder, BeginsAnewAfterTheEnd) {
  const std::vector<std::string> tokens{kMark + "a"};
  const Json json = llama();
  const Decoder decoder(Component(json, "m/tokenizer.json", "decoder"), tokens);
  DecoderStream stream(decoder);
  EXPECT_EQ(stream.push(0), "a");
  EXPECT_EQ(stream.push(0), " a");
  EXPECT_EQ(stream.push(5), ""); // no token
  EXPECT_EQ(stream.finish(), "");
  EXPECT_EQ(stream.push(0), "a");
}

TEST(Decoder, RefusesByName) {
  const auto refused = [](const Json& json, const std::string& part) {
    EXPECT_THAT(
        [&] { Decoder(Component(json, "m/tokenizer.json", "decoder"), {}); },
        ThrowsMessage<UserError>(
            testing::AllOf(HasSubstr("m/tokenizer.json: decoder"), HasSubstr(part))));
  };
  refused({{"type", "CTC"}}, ".type is \"CTC\"");
  Json wrong = llama();
  wrong["decoders"][3]["stop"] = 1;
  refused(wrong, ".decoders[3].stop is 1; only 0");
  wrong = llama();
  std::swap(wrong["decoders"][0], wrong["decoders"][1]);
  refused(wrong, ".decoders[1].type is \"Replace\"");
  wrong = llama();
  wrong["decoders"].erase(2);
  refused(wrong, "after Fuse only");
  wrong = llama();
  wrong["decoders"][0]["pattern"] = {{"Regex", "a"}};
  refused(wrong, ".decoders[0].pattern is object; only a String");
}

} // namespace
} // namespace palimpsest
