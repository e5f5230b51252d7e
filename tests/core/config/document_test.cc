#include <palimpsest/tests/core/config/loading.h>

#include <palimpsest/core/config/document.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Kind = DocumentNode::Kind;

TEST(Document, KeepsLinesAndQuotes) {
  for (const char* name : {"run.yaml", "run.json"}) {
    Problems problems;
    const DocumentNode root =
        parse_document("{\"a\":\n {\"b\":\n [1,\n \"2\"],\n\"c\": 7\n}}", name, problems);
    const DocumentNode& a = root.items[0];
    EXPECT_THAT(root.keys, ElementsAre("a"));
    EXPECT_THAT(a.keys, ElementsAre("b", "c"));
    EXPECT_EQ(a.line, 1);
    EXPECT_EQ(a.items[0].line, 2); // a value counts where its key stands
    EXPECT_EQ(a.items[0].items[0].kind, Kind::kPlain);
    EXPECT_EQ(a.items[0].items[0].line, 3);
    EXPECT_EQ(a.items[0].items[1].kind, Kind::kQuoted);
    EXPECT_EQ(a.items[0].items[1].line, 4);
    EXPECT_EQ(a.items[1].line, 5);
    EXPECT_EQ(a.items[1].text, "7");
    EXPECT_TRUE(problems.empty());
  }
}

TEST(Document, DuplicatesAreFoundAtEachDepth) {
  for (const char* name : {"run.yaml", "run.json"}) {
    Problems problems;
    parse_document("{\"a\": {\"b\": 1,\n\"b\": 2},\n\"a\": 3}", name, problems);
    EXPECT_THAT(
        problems,
        ElementsAre(
            std::string(name) + ":2: a.b: the key appears twice; give it once",
            std::string(name) + ":3: a: the key appears twice; give it once"));
  }
}

TEST(Document, MalformedYamlNamesItsLine) {
  EXPECT_THAT(refusal("model: {preset: tiny\ndata: ["), HasSubstr("run.yaml:"));
  EXPECT_THAT(refusal("model: {}\ndata: \"open"), HasSubstr("run.yaml:2: not valid YAML"));
  EXPECT_THAT(refusal("a: b: c"), HasSubstr("run.yaml:1: not valid YAML"));
  EXPECT_THAT(refusal("a:\n\t- b"), HasSubstr("not valid YAML"));
  EXPECT_THAT(refusal(""), HasSubstr("the file is empty"));
  EXPECT_THAT(refusal("# only a comment\n"), HasSubstr("run.yaml: "));
  EXPECT_THAT(refusal("just words"), HasSubstr("holds just words instead of keys"));
  EXPECT_THAT(refusal("- a\n- b"), HasSubstr("holds a list instead of keys"));
  EXPECT_THAT(refusal(minimal() + "---\na: 1\n"), HasSubstr("several YAML documents"));
  EXPECT_THAT(refusal("model: &m {preset: tiny}\ndata: *m"), HasSubstr("run.yaml:2: YAML aliases"));
  EXPECT_THAT(refusal("model: !!python/object:os.system {}"), HasSubstr("YAML tags"));
  EXPECT_THAT(refusal("? [a, b]\n: c"), HasSubstr("a list stands where a key is expected"));
  EXPECT_THAT(refusal(std::string("model: \0", 8)), HasSubstr("zero byte"));
  EXPECT_THAT(refusal("model: \xff\xfe"), HasSubstr("not UTF-8"));
}

TEST(Document, MalformedJsonNamesItsLine) {
  for (const char* text :
       {"", "{", "{\"a\": }", "{\"a\": 1,}", "{'a': 1}", "{\"a\": 1} x", "[", "nul", "{\"a\" 1}"}) {
    EXPECT_THAT(refusal(text, {}, "run.json"), HasSubstr("run.json:1: ")) << text;
  }
  EXPECT_THAT(
      refusal("{\"training\": {\n\"seed\": 1.}}", {}, "run.json"),
      HasSubstr("run.json:2: training.seed: not valid JSON: syntax error"));
  EXPECT_THAT(refusal("[1]", {}, "run.json"), HasSubstr("holds a list instead of keys"));
  EXPECT_THAT(refusal("{\"a\": \"\xff\"}", {}, "run.json"), HasSubstr("not UTF-8"));
}

std::string repeat(const std::string& text, int times) {
  std::string all;
  for (int i = 0; i < times; ++i) {
    all += text;
  }
  return all;
}

TEST(Document, DeepNestingIsAnError) {
  constexpr int kDeep = 10000;
  const auto too_deep = HasSubstr("nested deeper than 32 levels");
  for (const char* name : {"run.yaml", "run.json"}) {
    EXPECT_THAT(refusal(repeat("[", kDeep) + repeat("]", kDeep), {}, name), too_deep);
    EXPECT_THAT(refusal(repeat("{\"a\":", kDeep) + "1" + repeat("}", kDeep), {}, name), too_deep);
  }
  EXPECT_THAT(refusal(repeat("- ", kDeep)), too_deep);
  EXPECT_NE(refusal(repeat("? ", kDeep)), "");
  EXPECT_NE(refusal("a: " + repeat("!a ", kDeep)), "");
  const std::string closed = repeat("[", kDeep) + repeat("]", kDeep);
  EXPECT_THAT(refusal(minimal(), {"data.files=" + closed}), too_deep);
  // Never closed: YAML takes a bracket for the beginning of a key, JSON goes down first.
  EXPECT_THAT(refusal(repeat("[", kDeep)), HasSubstr("is a bracket not closed?"));
  EXPECT_THAT(refusal(repeat("{\"a\":", kDeep)), HasSubstr("is a bracket not closed?"));
  EXPECT_THAT(refusal(repeat("[", kDeep), {}, "run.json"), too_deep);
  EXPECT_THAT(refusal(repeat("{\"a\":", kDeep), {}, "run.json"), too_deep);
  EXPECT_LT(refusal(minimal(), {"data.files=" + repeat("[", kDeep)}).size(), 200);
}

TEST(Document, ExpandingAliasesAreAnError) {
  std::string bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 12; ++i) {
    const std::string last = "*a" + std::to_string(i - 1) + ", ";
    bomb += "a" + std::to_string(i) + ": &a" + std::to_string(i) + " [" + repeat(last, 9) + "x]\n";
  }
  EXPECT_THAT(refusal(bomb), HasSubstr("run.yaml:2: YAML aliases are not supported"));
}

TEST(Document, DescribesWithinALine) {
  DocumentNode node;
  node.kind = Kind::kQuoted;
  node.text = "a\nb" + std::string(100, 'c');
  EXPECT_EQ(describe(node), "\"a b" + std::string(57, 'c') + "...\"");
}

} // namespace
} // namespace palimpsest
