#include <palimpsest/memory/planners/chain_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/memory/planners/planner.h>
#include <palimpsest/tests/memory/planners/chains.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

namespace palimpsest::testing {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::Not;

void expect_equal(const CostChain& one, const CostChain& other) {
  EXPECT_EQ(one.input_bytes, other.input_bytes);
  EXPECT_EQ(one.loss_seconds, other.loss_seconds);
  EXPECT_EQ(one.loss_workspace, other.loss_workspace);
  EXPECT_EQ(one.loss_gradient_bytes, other.loss_gradient_bytes);
  ASSERT_EQ(one.size(), other.size());
  for (size_t stage = 0; stage < one.stages.size(); ++stage) {
    EXPECT_EQ(one.stages[stage].name, other.stages[stage].name);
    EXPECT_EQ(one.stages[stage].output_bytes, other.stages[stage].output_bytes);
    EXPECT_EQ(one.stages[stage].forward_seconds, other.stages[stage].forward_seconds);
    EXPECT_EQ(one.spares_unread, other.spares_unread);
    EXPECT_EQ(one.stages[stage].gradient_bytes, other.stages[stage].gradient_bytes);
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
    for (ChainStage& stage : chain.stages) {
      stage.name = "layers.0 \"quoted\"";
    }
    chain.stages.front().forward_seconds += 1.0 / 3;
    expect_equal(parse_chain(chain_json(chain), "written.json"), chain);
    std::ranges::for_each(
        chain.stages, [](std::string& name) { name = ""; }, &ChainStage::name);
    expect_equal(parse_chain(chain_json(chain), "written.json"), chain);
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
      {R"("fw")", R"("fww")", "1: fww: unknown key (did you mean fw?)"},
      {R"("abar")", R"("steps")", "1: steps: unknown key; allowed: id, why, L, names, fw, bw,"},
      {R"("fw")", R"("bw")", "1: bw: the key appears twice"},
      {R"("fw": [1, 2])", R"("fw": [])", "1: fw: a list of 0 is not allowed; give a list"},
      {R"("fw": [1, 2], )", "", " fw has 0 numbers, one a stage; give 1 to 2000"},
      {R"("fw": [1, 2])", R"("fw": 3)", "1: fw: 3 is not allowed; give a list"},
      {R"("fw": [1, 2])", R"("fw": [1, null])", "1: fw[1]: nothing is not allowed; give"},
      {R"("fw": [1, 2])", R"("fw": [1, [2]])", "1: fw[1]: a list is not allowed; give"},
      {R"("bw": [2, 3])", R"("bw": [2])", "bw has 1 number; give 2, since fw has 2"},
      {R"([1, 2, 3])", R"([1, 2])", "a has 2 numbers; give 3, since fw has 2"},
      {R"([4, 5])", R"([4, 5, 6])", "abar has 3 numbers"},
      {R"("ftmp": [0, 0])", R"("ftmp": [0])", "ftmp has 1 number"},
      {R"(, 3], "abar")", R"(, {}], "abar")", "1: a[2]: a section is not allowed; give"},
      {R"([0, 1])", R"([2])", "btmp has 1 number"},
      {R"([0, 1])", R"([0, 1], "names": ["x"])", "names has 1 number"},
      {R"([0, 1])", R"([0, 1], "ftmp_none": [1])", "ftmp_none has 1 number"},
      {R"([0, 1])", R"([0, 1], "fw_value": [1])", "fw_value has 1 number"},
      {R"([0, 1])",
       R"([0, 1], "lean": {"bw": [2, 3], "abar": [4, 5], "ftmp": [0, 0], "btmp": [0, 1], "fw_value": [1, 1]})",
       "lean.fw_value is given without fw_value"},
      {R"([0, 1])", R"([0, 1], "fw_value": [0, 3])", "stage 2"},
      {R"([0, 1])", R"([0, 1], "grad": [1])", "grad has 1 number"},
      {R"([0, 1])", R"([0, 1], "grad": [1, 0.5])", "grad has 0.5, which is not a size"},
      {R"([0, 1])", R"([0, 1], "loss_grad": -1)", "loss_grad has -1, which is not a size"},
      {R"([0, 1])", R"([0, 1], "L": 3)", "L is 3, but fw has 2 numbers"},
      {R"([0, 1])", R"([0, 1], "lean": {"abar": [4, 4]})", "lean.bw has 0 numbers"},
      {R"("loss_bw": 1, )", "", "loss_bw and loss_tmp must both be given"},
      {R"([4, 5])", R"([4, 2])", "stage 2: its tape of 2 bytes is smaller than its output of 3"},
      {R"([4, 5])", R"([4, 5.5])", "abar has 5.5, which is not a size"},
      {R"([4, 5])", R"([4, -5])", "abar has -5, which is not a size"},
      {R"([4, 5])", R"([4, 1e30])", "abar has 1e+30, which is not a size"},
      {R"([4, 5])", R"([4, "NaN"])", "1: abar[1]: \"NaN\" is not allowed; give"},
      {R"("bw": [2, 3])", R"("bw": [2, -3])", "stage 2: its backward of -3 seconds"},
      {R"("loss_bw": 1)", R"("loss_bw": [1])", "2: loss_bw: a list is not allowed; give a number"},
      {R"("loss_bw": 1)", R"("loss_bw": -1)", "the loss: its time of -1 seconds"},
      {R"([0, 1])",
       R"([0, 1], "lean": {"bw": [2, 1], "abar": [4, 4], "ftmp": [0, 0], "btmp": [0, 1]})",
       "stage 2: its backward is faster from the lean tape (1 s) than from the full one (3 s)"},
      {R"("fw": [1, 2])", R"("fw": [1, "two"])", "1: fw[1]: \"two\" is not allowed; give"},
      {R"([0, 1])", R"([0, 1], "lean": [1])", "2: lean: a list is not allowed; give a section"},
      {R"([0, 1])", R"([0, 1], "lean": {"bws": [1]})", "2: lean.bws: unknown key"},
      {R"({"fw")", R"(["fw")", "not valid JSON"},
      {R"("loss_tmp": 0})", R"("loss_tmp": 0)", "2: not valid JSON"},
      {good, "", "not valid JSON"},
      {good, "null", " holds nothing instead of a chain"},
      {good, "[1, 2]", " holds a list instead of a chain"},
  };
  for (const Wrong& wrong : wrongs) {
    std::string text = good;
    text.replace(text.find(wrong.from), wrong.from.size(), wrong.to);
    try {
      parse_chain(text, "chain.json");
      ADD_FAILURE() << text;
    } catch (const UserError& error) {
      const std::string said = error.what();
      EXPECT_THAT(said, HasSubstr(wrong.says)) << text;
      EXPECT_THAT(said, ::testing::StartsWith("chain.json:"));
      EXPECT_EQ(std::ranges::count(said, '\n'), 0) << said;
      EXPECT_THAT(said, Not(AnyOf(HasSubstr("Protobuf"), HasSubstr("INVALID_ARGUMENT"))));
    }
  }
}

} // namespace
} // namespace palimpsest::testing
