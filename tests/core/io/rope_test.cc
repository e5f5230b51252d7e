#include <palimpsest/core/io/rope.h>

#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/tests/core/io/testing.h>

#include <nlohmann/json.hpp>

#include <cmath>

namespace palimpsest {
namespace {

std::vector<float> frequencies(const RopeConfig& rope, int64_t head_dim) {
  return rope_table(rope, head_dim, 2048, 2048).inverse_frequencies;
}

void expect_near(
    const std::vector<float>& actual,
    const std::vector<double>& expected,
    double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_NEAR(actual[i] / expected[i], 1.0, tolerance) << "pair " << i;
  }
}

TEST(RopeTable, DefaultIsThetaToThePower) {
  expect_near(frequencies({}, 8), {1.0, 0.1, 0.01, 0.001}, 1e-7);
}

TEST(RopeTable, LinearDividesAll) {
  const auto plain = frequencies({}, 64);
  const auto scaled = frequencies({.type = RopeType::kLinear, .factor = 4.0}, 64);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(scaled[i], plain[i] / 4.0F);
  }
}

TEST(RopeTable, Llama3KeepsBlendsAndDivides) {
  const RopeConfig rope{
      .type = RopeType::kLlama3, .factor = 8.0, .original_max_position_embeddings = 8192};
  expect_near(frequencies(rope, 8), {1.0, 0.1, 0.01, 2.136075e-4}, 1e-6);

  RopeConfig wide = rope;
  wide.theta = 5e5;
  const auto plain = frequencies({.theta = 5e5}, 16);
  const auto scaled = frequencies(wide, 16);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(scaled[i], plain[i]);
  }
  EXPECT_NEAR(plain[4], 1.414214e-3, 1e-9);
  EXPECT_NEAR(scaled[4], 5.248462e-4, 1e-9);
  for (size_t i = 5; i < 8; ++i) {
    EXPECT_EQ(scaled[i], plain[i] / 8.0F);
  }
}

TEST(RopeTable, DynamicIsPlainUpToTheTrainedLength) {
  const RopeConfig rope{.type = RopeType::kDynamic, .factor = 2.0};
  const auto plain = frequencies({}, 64);
  EXPECT_EQ(rope_table(rope, 64, 2048, 1).inverse_frequencies, plain);
  EXPECT_EQ(rope_table(rope, 64, 2048, 2048).inverse_frequencies, plain);
  EXPECT_NE(rope_table(rope, 64, 2048, 2049).inverse_frequencies, plain);
}

TEST(RopeTable, AgreesWithTransformers) {
  const auto file = std::filesystem::path(PALIMPSEST_TEST_DATA) / "rope.json";
  const auto golden = nlohmann::json::parse(read_file(file));
  ASSERT_GE(golden["cases"].size(), 15u);
  for (const auto& item : golden["cases"]) {
    SCOPED_TRACE(item["rope_scaling"].dump());
    // Through config.json, so that its keys are tested with the formulas.
    const auto head_dim = item["head_dim"].get<int64_t>();
    const nlohmann::json json = {
        {"model_type", "llama"},
        {"vocab_size", 8},
        {"hidden_size", 4 * head_dim},
        {"intermediate_size", 8},
        {"num_hidden_layers", 1},
        {"num_attention_heads", 4},
        {"max_position_embeddings", item["max_position_embeddings"]},
        {"rope_theta", item["rope_theta"]},
        {"rope_scaling", item["rope_scaling"]}};
    const DecoderConfig config = parse_decoder_config(json.dump(), "config.json");
    const RopeTable table =
        rope_table(config.rope, head_dim, config.max_position_embeddings, item["sequence_length"]);
    expect_near(
        table.inverse_frequencies, item["inverse_frequencies"].get<std::vector<double>>(), 1e-7);
    EXPECT_NEAR(table.attention_scaling, item["attention_scaling"].get<double>(), 1e-12);
  }
}

TEST(RopeTable, RefusesOddHeads) {
  EXPECT_THROW(rope_table({}, 7, 2048, 1), InternalError);
  EXPECT_THROW(rope_table({.type = RopeType::kDynamic}, 2, 2048, 1), InternalError);
  EXPECT_THROW(rope_table({.type = RopeType::kLlama3}, 8, 2048, 1), InternalError);
}

TEST(RopeType, NamesReadBack) {
  for (const std::string_view name : {"default", "linear", "dynamic", "yarn", "llama3"}) {
    EXPECT_EQ(name_of(parse_rope_type(name).value()), name);
  }
  EXPECT_FALSE(parse_rope_type("longrope"));
}

} // namespace
} // namespace palimpsest
