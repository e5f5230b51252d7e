#include <palimpsest/memory/planners/chain_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/tests/memory/planners/chains.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace palimpsest::testing {
namespace {

using ::testing::HasSubstr;

void expect_equal(const CostChain& one, const CostChain& other) {
  EXPECT_EQ(one.input_bytes, other.input_bytes);
  EXPECT_EQ(one.loss_seconds, other.loss_seconds);
  EXPECT_EQ(one.loss_workspace, other.loss_workspace);
  ASSERT_EQ(one.size(), other.size());
  for (size_t stage = 0; stage < one.stages.size(); ++stage) {
    EXPECT_EQ(one.stages[stage].name, other.stages[stage].name);
    EXPECT_EQ(one.stages[stage].output_bytes, other.stages[stage].output_bytes);
    EXPECT_EQ(one.stages[stage].forward_seconds, other.stages[stage].forward_seconds);
    EXPECT_EQ(one.stages[stage].forward_workspace, other.stages[stage].forward_workspace);
    EXPECT_EQ(one.stages[stage].tapes, other.stages[stage].tapes);
  }
}

TEST(ChainFile, ReadsPublishedCasesAsTheyAre) {
  std::ifstream file(PALIMPSEST_TEST_DATA "/planner/rotor_cases.json");
  const nlohmann::json published = nlohmann::json::parse(file);
  for (const nlohmann::json& rotor : published.at("cases")) {
    expect_equal(parse_chain(rotor.dump(), "case"), chain_from(rotor));
  }
}

TEST(ChainFile, GivesBackWhatWasWritten) {
  std::mt19937_64 draw(21);
  for (int trial = 0; trial < 20; ++trial) {
    CostChain chain = draw_chain(draw, {.lean = true});
    chain.input_bytes = (int64_t{1} << 50) - 3; // every byte counts
    chain.stages.front().name = "layers.0 \"quoted\"";
    chain.stages.front().forward_seconds = 1.0 / 3;
    expect_equal(parse_chain(chain_json(chain), "written"), chain);
  }
}

TEST(ChainFile, SaysWhatIsWrong) {
  const std::string good =
      R"({"fw": [1, 2], "bw": [2, 3], "a": [1, 2, 3], "abar": [4, 5], "ftmp": [0, 0],
          "btmp": [0, 1], "loss_bw": 1, "loss_tmp": 0})";
  EXPECT_EQ(parse_chain(good, "good").size(), 2);
  struct Wrong {
    std::string from;
    std::string to;
    std::string says;
  };
  const std::vector<Wrong> wrongs = {
      {R"("fw")", R"("fww")", "fww"},
      {R"("fw": [1, 2])", R"("fw": [])", "fw has 0 numbers, one a stage; give 1 to 2000"},
      {R"("bw": [2, 3])", R"("bw": [2])", "bw has 1 numbers; give 2, since fw has 2"},
      {R"([1, 2, 3])", R"([1, 2])", "a has 2 numbers; give 3, since fw has 2"},
      {R"([4, 5])", R"([4, 5, 6])", "abar has 3 numbers"},
      {R"("ftmp": [0, 0])", R"("ftmp": [0])", "ftmp has 1 numbers"},
      {R"([0, 1])", R"([])", "btmp has 0 numbers"},
      {R"([0, 1])", R"([0, 1], "names": ["x"])", "names has 1 numbers"},
      {R"([0, 1])", R"([0, 1], "ftmp_none": [1])", "ftmp_none has 1 numbers"},
      {R"([0, 1])", R"([0, 1], "L": 3)", "L is 3, but fw has 2 numbers"},
      {R"([0, 1])", R"([0, 1], "lean": {"abar": [4, 4]})", "lean.bw has 0 numbers"},
      {R"("loss_bw": 1, )", "", "loss_bw and loss_tmp must both be given"},
      {R"([4, 5])", R"([4, 2])", "stage 2: its tape of 2 bytes is smaller than its output of 3"},
      {R"([4, 5])", R"([4, 5.5])", "abar has 5.5, which is not a size"},
      {R"([4, 5])", R"([4, -5])", "abar has -5, which is not a size"},
      {R"([4, 5])", R"([4, 1e30])", "abar has 1e+30, which is not a size"},
      {R"([4, 5])", R"([4, "NaN"])", "abar has nan, which is not a size"},
      {R"("bw": [2, 3])", R"("bw": [2, -3])", "stage 2: its backward of -3 seconds"},
      {R"("fw": [1, 2])", R"("fw": [1, "Infinity"])", "stage 2: its forward of inf seconds"},
      {R"("loss_bw": 1)", R"("loss_bw": -1)", "the loss: its time of -1 seconds"},
      {R"([0, 1])",
       R"([0, 1], "lean": {"bw": [2, 1], "abar": [4, 4], "ftmp": [0, 0], "btmp": [0, 1]})",
       "stage 2: its backward is faster from the lean tape (1 s) than from the full one (3 s)"},
      {R"("fw": [1, 2])", R"("fw": [1, "two"])", "fw[1]"},
      {R"({"fw")", R"(["fw")", "not a chain"},
      {good, "", "not a chain"},
      {good, "null", "chain.json"},
  };
  for (const Wrong& wrong : wrongs) {
    std::string text = good;
    text.replace(text.find(wrong.from), wrong.from.size(), wrong.to);
    try {
      parse_chain(text, "chain.json");
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), HasSubstr(wrong.says));
      EXPECT_THAT(error.what(), ::testing::StartsWith("chain.json: "));
    }
  }
}

} // namespace
} // namespace palimpsest::testing
