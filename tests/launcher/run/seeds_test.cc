// What ranks have in common, initial weights, and what they must not, dropout masks.

#include <palimpsest/core/kernels/dropout.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>

#include <ATen/ops/equal.h>
#include <fmt/format.h>

#include <cstdlib>

namespace palimpsest {
namespace {

using testing::TestFolder;

std::string yaml(const TestFolder& folder) {
  std::ofstream(folder / "text.txt") << std::string(64 * 17, 'x');
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256, dropout: 0.5}}
data: {{files: [{}], format: text, sequence_length: 16}}
training: {{steps: 2, micro_batch_size: 1, global_batch_size: 8, threads: 1}}
optimizer: {{learning_rate: 1e-3}}
)",
      folder / "text.txt");
}

using Parameters = std::map<std::string, std::vector<float>>;

// The same weights at the start on every rank, and those of one process: whole, or put together
// from the ranks' shards.
TEST(Seeds, RanksBeginWithTheSameWeights) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  Parameters initial;
  {
    palimpsest::Run alone(testing::run_config(config, folder, {}));
    alone.prepare();
    testing::add_parameters(alone, initial);
  }
  for (int zero = 0; zero <= 3; ++zero) {
    std::mutex mutex;
    Parameters together;
    testing::on_ranks(4, [&](Communicator& world, MemoryContext&) {
      Ranks ranks(world, {.ranks = 4, .threads = 1});
      palimpsest::Run run(
          testing::run_config(
              config, folder, {fmt::format("parallel.zero={}", zero), "training.restart=true"}),
          ranks);
      run.prepare();
      const std::lock_guard lock(mutex);
      if (zero == 0) {
        Parameters own;
        testing::add_parameters(run, own);
        EXPECT_EQ(own, initial) << "rank " << world.rank();
      }
      testing::add_parameters(run, together);
    });
    EXPECT_EQ(together, initial) << zero;
  }
}

/// The masks of 1,024 elements that a block draws for each row of a step, by the row's place.
std::map<int, std::vector<at::Tensor>> masks(
    int count,
    const std::string& config,
    const TestFolder& folder,
    int64_t step) {
  std::mutex mutex;
  std::map<int, std::vector<at::Tensor>> found;
  testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = count, .threads = 1});
    palimpsest::Run run(testing::run_config(config, folder, {}), ranks);
    const kernels::DropoutKey key{.seed = 42, .step = static_cast<uint64_t>(step), .block = 1};
    for (const MicroBatch& batch : run.batches().load(step)) {
      const std::lock_guard lock(mutex);
      found[world.rank()].push_back(kernels::dropout_factors(1, 1024, 0.5, key, batch.rows));
    }
  });
  return found;
}

// Two masks agree in half of their elements, within four standard deviations of 16.
void expect_unrelated(const at::Tensor& one, const at::Tensor& other, const std::string& which) {
  const auto agreeing = one.eq(other).sum().item<int64_t>();
  EXPECT_NEAR(static_cast<double>(agreeing), 512, 64) << which;
}

TEST(Seeds, EveryRankAndMicroBatchDropsOtherElements) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const auto first = masks(4, config, folder, 0);
  std::vector<at::Tensor> all;
  for (const auto& [rank, own] : first) {
    ASSERT_EQ(own.size(), 2U);
    all.insert(all.end(), own.begin(), own.end());
  }
  for (size_t one = 0; one < all.size(); ++one) {
    const auto kept = all[one].ne(0).sum().item<int64_t>();
    EXPECT_NEAR(static_cast<double>(kept), 512, 64);
    for (size_t other = 0; other < one; ++other) {
      expect_unrelated(all[one], all[other], fmt::format("{} and {}", one, other));
    }
  }
  const auto second = masks(4, config, folder, 1);
  const auto again = masks(4, config, folder, 0);
  const auto plain = masks(1, config, folder, 0);
  for (int rank = 0; rank < 4; ++rank) {
    for (size_t own = 0; own < 2; ++own) {
      const at::Tensor& mask = first.at(rank)[own];
      expect_unrelated(mask, second.at(rank)[own], "the next step");
      EXPECT_TRUE(again.at(rank)[own].equal(mask)) << "the same run again";
      // global micro-batch j N + r
      EXPECT_TRUE(plain.at(0)[own * 4 + static_cast<size_t>(rank)].equal(mask)) << "one process";
    }
  }
}

} // namespace
} // namespace palimpsest
