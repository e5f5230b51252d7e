// Plans, bytes and seconds against an independent implementation's, for 160 sampled combinations.

#include <palimpsest/core/plan/simulate.h>
#include <palimpsest/tests/support/plan/examples.h>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <fstream>

namespace palimpsest::testing {
namespace {

using nlohmann::json;

Segments parse_segments(const json& list) {
  Segments segments;
  for (const json& item : list) {
    segments.push_back(
        {{item[0].get<int>(), item[1].get<int>()},
         parse_tape(item[2].get<std::string>()),
         parse_segments(item[3])});
  }
  return segments;
}

Case parse_case(const json& row) {
  const json& costs = row["costs"];
  Case result = make(
      {.model = row["model"],
       .schedule = row["schedule"],
       .ranks = row["ranks"],
       .micro_batches = row["micro_batches"],
       .zero = row["zero"],
       .replicate = row["data"][0],
       .shard = row["data"][1],
       .away = row["away"],
       .window = row["window"],
       .read_ahead = row["read_ahead"],
       .lag = row["lag"],
       .links = {
           .communication = costs[0],
           .copy = costs[1],
           .disk = costs[2],
           .reduce_workspace = costs[3],
           .communication_overlaps = costs[4]}});
  result.options.segments = parse_segments(row["segments"]);
  return result;
}

/// 64-bit FNV-1a, as 16 hexadecimal digits.
std::string fnv1a(const std::string& text) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char letter : text) {
    hash = (hash ^ static_cast<unsigned char>(letter)) * 0x100000001b3ULL;
  }
  std::string digits(16, '0');
  for (size_t digit = 16; digit-- > 0; hash >>= 4) {
    digits[digit] = "0123456789abcdef"[hash & 15];
  }
  return digits;
}

TEST(Reference, PlansBytesAndSecondsAreThoseOfAnIndependentImplementation) {
  std::ifstream file(PALIMPSEST_TEST_DATA "/plan/reference.json");
  ASSERT_TRUE(file);
  const json rows = json::parse(file);
  ASSERT_EQ(rows.size(), 160U);
  for (const json& row : rows) {
    SCOPED_TRACE(row.dump());
    const Case example = parse_case(row);
    const Plans plans = example.plans();
    for (size_t rank = 0; rank < plans.size(); ++rank) {
      EXPECT_EQ(plans[rank].size(), row["operations"][rank].get<size_t>());
      EXPECT_EQ(fnv1a(to_text(plans[rank])), row["text"][rank].get<std::string>());
    }
    const PlanReport report = simulate(plans, example.job);
    ASSERT_EQ(report.ranks.size(), row["peak"].size());
    for (size_t rank = 0; rank < report.ranks.size(); ++rank) {
      const RankReport& found = report.ranks[rank];
      for (size_t tier = 0; tier < kTiers; ++tier) {
        EXPECT_EQ(found.peak[static_cast<TierId>(tier)], row["peak"][rank][tier].get<int64_t>());
      }
      const auto& device = found.category[TierId::kDevice];
      EXPECT_EQ(device[PlanCategory::kTape], row["tapes"][rank].get<int64_t>());
      EXPECT_EQ(device[PlanCategory::kWorkspace], row["workspace"][rank].get<int64_t>());
      EXPECT_EQ(found.forwards, row["forwards"][rank].get<int64_t>());
    }
    EXPECT_NEAR(report.seconds, row["seconds"].get<double>(), 1e-9 * report.seconds);
    if (HasFailure()) {
      break;
    }
  }
}

} // namespace
} // namespace palimpsest::testing
