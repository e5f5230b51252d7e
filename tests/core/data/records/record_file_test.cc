// Covers: core/data/records/json_spans.cc

#include <palimpsest/core/data/records/record_file.h>

#include <palimpsest/core/data/records/json_spans.h>
#include <palimpsest/tests/core/data/temporary_folder.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <random>

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::ThrowsMessage;

/// The values of "a" in all records.
std::vector<int> values(const RecordFile& file) {
  std::vector<int> all;
  for (int64_t i = 0; i < file.size(); ++i) {
    all.push_back(file.read(i).at("a").get<int>());
  }
  return all;
}

class RecordFiles : public testing::Test {
 protected:
  RecordFile open(const std::string& text) const {
    return RecordFile(folder_.write("data.jsonl", text));
  }
  /// The message of reading all records, or of opening.
  void refused(const std::string& text, const std::string& location, const std::string& part)
      const {
    EXPECT_THAT(
        [&] {
          const RecordFile file = open(text);
          for (int64_t i = 0; i < file.size(); ++i) {
            file.located(i, [&] { return file.read(i); });
          }
        },
        ThrowsMessage<UserError>(AllOf(HasSubstr("data.jsonl" + location), HasSubstr(part))));
  }

  const TemporaryFolder folder_;
};

TEST_F(RecordFiles, ReadLinesAsFoundInTheWild) {
  EXPECT_THAT(values(open("{\"a\":1}\n{\"a\":2}\n")), ElementsAre(1, 2));
  EXPECT_THAT(values(open("\xef\xbb\xbf{\"a\":1}\r\n\r\n  \n{\"a\":2}")), ElementsAre(1, 2));
  EXPECT_THAT(values(open("\n\n {\"a\": 1} \n")), ElementsAre(1));
  const RecordFile file = open("{\"a\":1}\r\n\r\n{\"a\":2}\n");
  EXPECT_THAT(file.location(0), testing::EndsWith("data.jsonl:1"));
  EXPECT_THAT(file.location(1), testing::EndsWith("data.jsonl:3"));
  // A line separator of Unicode inside a string ends no line.
  EXPECT_THAT(values(open("{\"t\":\"\xe2\x80\xa8\",\"a\":1}\n{\"a\":2}\n")), ElementsAre(1, 2));
}

TEST_F(RecordFiles, ReadArrays) {
  EXPECT_THAT(values(open("[{\"a\":1},{\"a\":2}]")), ElementsAre(1, 2));
  EXPECT_THAT(
      values(open(
          "\xef\xbb\xbf \n[\n {\"a\":1,\n  \"b\":[1,{\"c\":\"],}\\\"\"}]} ,\r\n{\"a\":2}\n]\n\n")),
      ElementsAre(1, 2));
  EXPECT_THAT(open("[\n{\"a\":1},\n\n{\"a\":2}]").location(1), testing::EndsWith("data.jsonl:4"));
}

TEST_F(RecordFiles, ReadOneHugeLineAndManyShortOnes) {
  const std::string huge(9 << 20, 'x'); // beyond one part of a scan
  const RecordFile file = open("{\"t\":\"" + huge + "\",\"a\":1}\n{\"a\":2}");
  EXPECT_THAT(values(file), ElementsAre(1, 2));
  EXPECT_EQ(file.read(0).at("t").get<std::string>(), huge);
  std::string lines;
  std::vector<int> expected;
  for (int i = 0; i < 700'000; ++i) { // lines meet the borders of parts at every offset
    lines += "{\"a\":" + std::to_string(i) + "}\n";
    expected.push_back(i);
  }
  const RecordFile many = open(lines);
  ASSERT_EQ(many.size(), 700'000);
  for (int i = 0; i < 700'000; i += 997) {
    ASSERT_EQ(many.read(i).at("a").get<int>(), i);
  }
  std::ranges::replace(lines, '\n', ',');
  lines.back() = ']';
  const RecordFile array = open("[" + lines);
  ASSERT_EQ(array.size(), 700'000);
  for (int i = 0; i < 700'000; i += 997) {
    ASSERT_EQ(array.read(i).at("a").get<int>(), i);
  }
}

TEST_F(RecordFiles, NameTheLineOfWhatIsWrong) {
  refused("{\"a\":1}\n{\"a\":1} {\"a\":2}\n", ":2: ", "more follows the first JSON value");
  refused("{\"a\":1}\n\n{\"a\":\n", ":3: ", "does not end on its line");
  refused("{\"a\":1}\n[1]\n", ":2: ", "a record is a JSON object, not \"[1]\"");
  refused("{\"a\":1}\n7\n", ":2: ", "a record is a JSON object");
  refused("{\"a\":1}\n{\"a\":1,}\n", ":2: ", "not valid JSON at byte 8");
  refused("{\"a\":1}\nhello\n", ":2: ", "not valid JSON at byte 1");
  refused("{\"a\":1}\n{\"a\":\"\xff\"}\n", ":2: ", "byte 7 of the record is no UTF-8");
  refused("{\"a\":1}\n{\"a\":1,\"a\":2}\n", ":2: ", "\"a\" occurs twice");
  refused("{\"a\":1}\n" + std::string(100, '['), ":2: ", "does not end on its line");
  refused("{\"a\":" + std::string(70, '[') + std::string(70, ']') + "}", ":1: ", "nested deeper");
}

TEST_F(RecordFiles, NameTheLineOfABrokenArray) {
  refused("[\n{\"a\":1},\n]", ":3: ", "an element is missing before the closing bracket");
  refused("[{\"a\":1},\n,{\"a\":2}]", ":2: ", "an element is missing before the comma");
  refused("[{\"a\":1}\n", ":1: ", "not closed");
  refused("[\n{\"a\":\"x]\n}", ":3: ", "not closed");
  refused("[{\"a\":1}]\n{\"a\":2}", ":2: ", "something after the array's end");
  refused("[\n{\"a\":1}\n{\"a\":2}]", ":2: ", "more follows the first JSON value");
  refused("[{\"a\":1},3]", ":1: ", "a record is a JSON object, not \"3\"");
  refused("[]", " holds no record", "");
  refused(" \n\n", " holds no record", "");
}

/// Random damage: opened and read, or refused with the file's name; never anything else.
TEST_F(RecordFiles, SurviveDamage) {
  const std::string lines = "{\"a\":1,\"b\":[\"x\\\"y\",{}]}\r\n{\"a\":2}\n\n{\"a\":3}";
  const std::string array = "[{\"a\":1,\"b\":[\"x\\\"y\",{}]},\n{\"a\":2},{\"a\":3}]";
  std::mt19937 random(7);
  int read = 0;
  int refused = 0;
  const int rounds = std::getenv("PALIMPSEST_FULL") != nullptr ? 20'000 : 500;
  for (int round = 0; round < rounds; ++round) {
    std::string text = round % 2 == 0 ? lines : array;
    for (auto edits = random() % 4; edits > 0 && !text.empty(); --edits) {
      const size_t place = random() % text.size();
      switch (random() % 4) {
        case 0:
          text[place] = static_cast<char>(random());
          break;
        case 1:
          text.erase(place, 1 + random() % 4);
          break;
        case 2:
          text.insert(place, 1, "{}[]\",\\\n\xff"[random() % 9]);
          break;
        default:
          text.resize(place);
      }
    }
    try {
      const RecordFile file = open(text);
      for (int64_t i = 0; i < file.size(); ++i) {
        ASSERT_TRUE(file.located(i, [&] { return file.read(i); }).is_object());
      }
      ++read;
    } catch (const UserError& error) {
      ASSERT_THAT(error.what(), HasSubstr("data.jsonl"));
      ++refused;
    }
  }
  EXPECT_GT(read, rounds / 10);
  EXPECT_GT(refused, rounds / 10);
}

TEST(FirstValueSize, EndsWithTheClosingBracket) {
  EXPECT_EQ(first_value_size(R"({"a":"}"} {})"), 9);
  EXPECT_EQ(first_value_size(R"( [1,[2]],)"), 8);
  EXPECT_EQ(first_value_size(R"({"a":1)"), std::nullopt);
  EXPECT_EQ(first_value_size("1 {}"), std::nullopt);
  EXPECT_EQ(first_value_size("}{"), std::nullopt);
  EXPECT_EQ(first_value_size("\"x\" {}"), std::nullopt);
}

} // namespace
} // namespace palimpsest
