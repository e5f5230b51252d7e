// The formulas of sharded states. Those of checkpointing are tested beside the recompute pass.

#include <palimpsest/core/plan/closed_forms.h>

#include <palimpsest/core/plan/simulate.h>

#include <gtest/gtest.h>

#include <array>

namespace palimpsest {
namespace {

/// Table 1 of the ZeRO paper: GB on each device, 16 bytes a parameter in mixed precision with Adam
/// (2 + 2 + 12), for stages 1, 2 and 3.
struct Row {
  int ranks;
  std::array<double, 3> small; // 7.5 billion parameters
  std::array<double, 3> middle; // 128 billion
  std::array<double, 3> large; // 1 trillion
};
constexpr std::array kTable{
    Row{1, {120, 120, 120}, {2048, 2048, 2048}, {16000, 16000, 16000}},
    Row{4, {52.5, 41.3, 30}, {896, 704, 512}, {7000, 5500, 4000}},
    Row{16, {35.6, 21.6, 7.5}, {608, 368, 128}, {4750, 2875, 1000}},
    Row{64, {31.4, 16.6, 1.88}, {536, 284, 32}, {4187, 2218, 250}},
    Row{256, {30.4, 15.4, 0.47}, {518, 263, 8}, {4046, 2054, 62.5}},
    Row{1024, {30.1, 15.1, 0.12}, {513, 257, 2}, {4011, 2013, 15.6}},
};

TEST(ZeroFormulas, GiveTheTableOfThePaper) {
  for (const Row& row : kTable) {
    for (size_t stage = 0; stage < 3; ++stage) {
      const Placement placement{.zero = static_cast<int>(stage) + 1};
      const auto gigabytes = [&](double billions) {
        const StateBytes whole{2 * billions, 2 * billions, 12 * billions};
        return bytes_per_rank(whole, placement, row.ranks).total();
      };
      // it rounds or cuts to the digits that it prints
      EXPECT_NEAR(gigabytes(7.5), row.small[stage], row.small[stage] < 2 ? 0.0051 : 0.051);
      EXPECT_NEAR(gigabytes(128), row.middle[stage], 0.99);
      EXPECT_NEAR(gigabytes(1000), row.large[stage], row.large[stage] < 100 ? 0.05 : 0.99);
    }
  }
}

TEST(ZeroFormulas, StageZeroKeepsEverything) {
  const StateBytes whole{2, 4, 12};
  EXPECT_EQ(bytes_per_rank(whole, {.zero = 0}, 8).total(), 18);
}

// 26,472 parameters on 4 ranks: 16 P, 4 P + 12 P/4, 2 P + 14 P/4, 16 P/4 in bf16 with an fp32 master and
// two moments; 16 P, 8 P + 8 P/4, 4 P + 12 P/4, 16 P/4 in fp32; fp32 gradients add 2 P, or 2 P/4.
TEST(ZeroFormulas, OfASmallModelInBytes) {
  constexpr double kParameters = 26472;
  const auto bytes = [&](double parameters, double gradients, double optimizer, int zero) {
    const StateBytes whole{
        parameters * kParameters, gradients * kParameters, optimizer * kParameters};
    return bytes_per_rank(whole, {.zero = zero}, 4).total();
  };
  constexpr std::array<double, 4> kBf16 = {423552, 185304, 145596, 105888};
  for (int zero = 0; zero <= 3; ++zero) {
    const bool shards_gradients = zero >= 2;
    EXPECT_EQ(bytes(2, 2, 12, zero), kBf16.at(static_cast<size_t>(zero)));
    EXPECT_EQ(
        bytes(2, 4, 12, zero) - bytes(2, 2, 12, zero),
        2 * kParameters / (shards_gradients ? 4 : 1));
  }
  EXPECT_EQ(bytes(4, 4, 8, 0), 16 * kParameters);
  EXPECT_EQ(bytes(4, 4, 8, 1), 8 * kParameters + 8 * kParameters / 4);
  EXPECT_EQ(bytes(4, 4, 8, 2), 4 * kParameters + 12 * kParameters / 4);
  EXPECT_EQ(bytes(4, 4, 8, 3), 16 * kParameters / 4);
}

/// A decoder of 7.5 billion parameters in units of a layer's halves.
ModelCost large_model() {
  ModelCost model;
  for (int block = 0; block < 72; ++block) {
    const int64_t elements = block % 2 == 0 ? 71'300'123 : 137'033'210;
    model.units.push_back(
        {.elements = elements,
         .parameter_bytes = 2 * elements,
         .gradient_bytes = 4 * elements,
         .state_bytes = 12 * elements});
    model.blocks.push_back(
        {.reads = {{block - 1, 0}}, .value_bytes = {1}, .units = {block}, .full_bytes = 1});
  }
  model.blocks.back().value_bytes.clear();
  return model;
}

TEST(ZeroFormulas, AreWhatAJobChargesButForPadding) {
  const ModelCost model = large_model();
  StateBytes whole;
  for (const UnitCost& unit : model.units) {
    whole.parameters += static_cast<double>(unit.parameter_bytes);
    whole.gradients += static_cast<double>(unit.gradient_bytes);
    whole.optimizer += static_cast<double>(unit.state_bytes);
  }
  for (const int ranks : {1, 4, 64, 1024}) {
    for (int zero = 0; zero <= 3; ++zero) {
      const Placement placement{.zero = zero};
      const Job job(
          {.model = model,
           .stages = {{0, 72}},
           .mesh = zero == 0 ? Mesh{.replicate = ranks} : Mesh{.shard = ranks},
           .placement = placement});
      StateBytes charged;
      for (int unit = 0; unit < 72; ++unit) {
        charged.parameters += static_cast<double>(job.size(job.weight(unit)));
        charged.gradients += static_cast<double>(
            job.size({zero >= 2 ? SlotKind::kGradShard : SlotKind::kGradBuffer, unit}));
        charged.optimizer += static_cast<double>(job.size({SlotKind::kOptimizerState, unit}));
      }
      const StateBytes formula = bytes_per_rank(whole, placement, ranks);
      // at most one chunk of padding in each unit's part, times the parts in a whole buffer
      const auto padding = [&](bool sharded, int bytes) {
        return 72.0 * bytes * static_cast<double>(kShardChunk) * (sharded ? 1 : ranks);
      };
      const auto expect = [](double found, double wanted, double slack) {
        EXPECT_GE(found, wanted - 1);
        EXPECT_LE(found, wanted + slack);
      };
      expect(charged.parameters, formula.parameters, padding(zero >= 3, 2));
      expect(charged.gradients, formula.gradients, padding(zero >= 2, 4));
      expect(charged.optimizer, formula.optimizer, padding(zero >= 1, 12));
      if (ranks <= 4) {
        EXPECT_LT(charged.total() / formula.total(), 1.0005);
      }
    }
  }
}

} // namespace
} // namespace palimpsest
