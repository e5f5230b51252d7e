// Where several ranks leave open how they share states, auto shares as much as the budget asks for.

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace palimpsest {
namespace {

using testing::TestFolder;

std::string config(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 64 * 65, 3);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 64, num_hidden_layers: 6, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 176, vocab_size: 256}}
data: {{files: [{}], format: text, sequence_length: 32}}
training: {{steps: 2, global_batch_size: 8, micro_batch_size: 2, reproducible: true}}
optimizer: {{learning_rate: 1e-3}}
activation_checkpointing: auto
)",
      folder / "text.txt");
}

struct Chosen {
  int64_t zero = 0;
  int64_t predicted = 0;
  int64_t measured = 0;
  std::vector<double> losses;
  std::string refusal;
};

/// What two ranks decide within a budget and then do.
Chosen within(int64_t budget, const TestFolder& folder, const std::string& more = "") {
  Chosen chosen;
  std::filesystem::remove_all(folder / "run");
  testing::on_ranks(2, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = 2, .threads = 1});
    std::vector<std::string> overrides = {fmt::format("memory.device_budget={}", budget)};
    if (!more.empty()) {
      overrides.push_back(more);
    }
    try {
      Run run(testing::run_config(config(folder), folder, overrides), ranks);
      run.prepare();
      testing::Records records;
      run.train({&records});
      if (ranks.leads()) {
        chosen.zero = run.config().parallel().zero();
        chosen.predicted = run.full_report().peak(TierId::kDevice);
        chosen.measured = records.all.back().peak_device_bytes;
        chosen.losses = records.losses();
      }
    } catch (const Error& error) {
      if (ranks.leads()) {
        chosen.refusal = error.what();
      }
    }
  });
  return chosen;
}

TEST(SharedStates, AutoSharesAsMuchAsTheBudgetAsksFor) {
  const TestFolder folder;
  const Chosen roomy = within(int64_t{1} << 30, folder);
  ASSERT_EQ(roomy.refusal, "");
  EXPECT_LE(roomy.zero, 1);
  const std::string refusal = within(1, folder).refusal;
  const int64_t least = std::stoll(refusal.substr(refusal.find(" (") + 2));
  int64_t shared = roomy.zero;
  for (int part = 8; part >= 1; part /= 2) {
    const int64_t budget = least + (roomy.predicted - least) * part / 10;
    const Chosen chosen = within(budget, folder);
    SCOPED_TRACE(budget);
    ASSERT_EQ(chosen.refusal, "");
    EXPECT_GE(chosen.zero, shared);
    shared = chosen.zero;
    EXPECT_LE(chosen.measured, budget);
    EXPECT_EQ(chosen.losses, roomy.losses);
  }
  EXPECT_EQ(shared, 3);
}

TEST(SharedStates, WhatTheConfigSaysStays) {
  const TestFolder folder;
  for (const int zero : {0, 2}) {
    const Chosen chosen = within(int64_t{1} << 30, folder, fmt::format("parallel.zero={}", zero));
    EXPECT_EQ(chosen.refusal, "");
    EXPECT_EQ(chosen.zero, zero);
  }
}

} // namespace
} // namespace palimpsest
