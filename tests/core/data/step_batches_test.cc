#include <palimpsest/core/data/step_batches.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/tensors_file.h>
#include <palimpsest/tests/core/data/fake_source.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/core/data/tensors.h>

#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

namespace palimpsest {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

/// Sample k has inputs {10 k, 10 k + 1} and labels {10 k + 1, -100}.
std::unique_ptr<SampleSource> numbered(int64_t samples) {
  std::vector<TokenSample> all;
  for (int64_t k = 0; k < samples; ++k) {
    all.push_back({{10 * k, 10 * k + 1}, {10 * k + 1, kIgnoredLabel}});
  }
  return std::make_unique<FakeSource>(std::move(all));
}

std::vector<int64_t> values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
}

std::vector<int64_t> sizes(const StepBatch& batch) {
  std::vector<int64_t> rows;
  for (const MicroBatch& micro : batch) {
    rows.push_back(micro.inputs.size(0));
  }
  return rows;
}

TEST(StepBatches, CutsAWindowIntoMicroBatchesInOrder) {
  StepBatches batches(
      numbered(8), {.global_batch_size = 8, .micro_batch_size = 3, .shuffle = false});
  ASSERT_EQ(batches.step_count(), 1);
  const StepBatch batch = batches.load(0);
  EXPECT_THAT(sizes(batch), ElementsAre(3, 3, 2));
  EXPECT_EQ(batches.micro_batch_sizes(0), sizes(batch));
  EXPECT_EQ(values(batch[0].inputs), (Ids{0, 1, 10, 11, 20, 21}));
  EXPECT_EQ(values(batch[2].inputs), (Ids{60, 61, 70, 71}));
  EXPECT_EQ(values(batch[2].labels), (Ids{61, -100, 71, -100}));
  EXPECT_EQ(values(batch[1].rows), (Ids{3, 4, 5}));
  EXPECT_EQ(values(batch[2].rows), (Ids{6, 7}));
  EXPECT_EQ(batch[0].target_count, 3);
  EXPECT_EQ(batch[0].token_count, 6);
  EXPECT_THROW(batches.load(1), InternalError);
  EXPECT_THAT(batches.notes(), IsEmpty());
}

TEST(StepBatches, MicroBatchesDifferByAtMostOneRow) {
  StepBatches batches(numbered(11), {.global_batch_size = 11, .micro_batch_size = 4});
  EXPECT_THAT(sizes(batches.load(0)), ElementsAre(4, 4, 3));
}

TEST(StepBatches, EndsAnEpochWithWhatIsLeft) {
  StepBatches batches(numbered(100), {.global_batch_size = 8, .micro_batch_size = 2, .epochs = 2});
  ASSERT_EQ(batches.step_count(), 26);
  EXPECT_THAT(sizes(batches.load(11)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(sizes(batches.load(12)), ElementsAre(2, 2));
  EXPECT_THAT(sizes(batches.load(13)), ElementsAre(2, 2, 2, 2));
  EXPECT_THAT(
      batches.notes(), ElementsAre("each epoch ends with a batch of 4 instead of 8 samples"));
  const StepBatches dropped(
      numbered(100), {.global_batch_size = 8, .epochs = 2, .drop_last = true});
  EXPECT_EQ(dropped.step_count(), 24);
  EXPECT_THAT(
      dropped.notes(), ElementsAre("data.drop_last leaves 4 of 100 samples out of each epoch"));
}

TEST(StepBatches, StepsGoOnWithTheNextEpoch) {
  StepBatches batches(
      numbered(5), {.global_batch_size = 2, .micro_batch_size = 2, .steps = 7, .shuffle = false});
  EXPECT_EQ(batches.step_count(), 7);
  std::vector<int64_t> seen;
  for (int64_t step = 0; step < 7; ++step) {
    const auto samples = batches.samples(step);
    seen.insert(seen.end(), samples.begin(), samples.end());
  }
  EXPECT_THAT(seen, ElementsAre(0, 1, 2, 3, 4, 0, 1, 2, 3, 4, 0, 1));
}

/// The samples that all ranks load in a step, by their first token.
std::multiset<int64_t> loaded(int64_t samples, BatchSettings settings, int64_t step) {
  std::multiset<int64_t> seen;
  size_t micro_batches = 0;
  for (settings.rank = 0; settings.rank < settings.ranks; ++settings.rank) {
    StepBatches batches(numbered(samples), settings);
    const std::vector<int64_t> in_order = batches.samples(step);
    const StepBatch batch = batches.load(step);
    EXPECT_TRUE(settings.rank == 0 || batch.size() == micro_batches);
    micro_batches = batch.size();
    for (const MicroBatch& micro : batch) {
      EXPECT_LE(micro.inputs.size(0), settings.micro_batch_size);
      for (int64_t row = 0; row < micro.inputs.size(0); ++row) {
        const int64_t sample = micro.inputs.const_data_ptr<int64_t>()[2 * row] / 10;
        const int64_t global_row = micro.rows.const_data_ptr<int64_t>()[row];
        EXPECT_EQ(in_order.at(static_cast<size_t>(global_row)), sample);
        seen.insert(sample);
      }
    }
  }
  return seen;
}

TEST(StepBatches, HaveEverySampleOncePerEpoch) {
  for (const int64_t samples : {1, 2, 3, 5, 12, 23}) {
    for (const int64_t batch : {1, 2, 4, 7}) {
      for (const int64_t micro : {1, 2, 3}) {
        for (const int ranks : {1, 2, 3}) {
          for (const bool shuffle : {false, true}) {
            const BatchSettings settings{
                .global_batch_size = batch,
                .micro_batch_size = micro,
                .epochs = 2,
                .shuffle = shuffle,
                .ranks = ranks};
            const int64_t per_epoch = StepBatches(numbered(samples), settings).step_count() / 2;
            for (const int64_t epoch : {0, 1}) {
              std::multiset<int64_t> seen;
              for (int64_t step = 0; step < per_epoch; ++step) {
                seen.merge(loaded(samples, settings, epoch * per_epoch + step));
              }
              EXPECT_EQ(std::ssize(seen), samples);
              EXPECT_EQ(std::ssize(std::set(seen.begin(), seen.end())), samples);
            }
          }
        }
      }
    }
  }
}

TEST(StepBatches, RanksTakeTurns) {
  const auto of_rank = [](int rank) {
    StepBatches batches(
        numbered(8),
        {.global_batch_size = 8,
         .micro_batch_size = 2,
         .shuffle = false,
         .rank = rank,
         .ranks = 2});
    return batches.load(0);
  };
  EXPECT_EQ(values(of_rank(0)[1].rows), (Ids{4, 5})); // global micro-batch 1 * 2 + 0
  EXPECT_EQ(values(of_rank(1)[0].rows), (Ids{2, 3}));
  StepBatches idle(
      numbered(1), {.global_batch_size = 4, .micro_batch_size = 1, .rank = 3, .ranks = 4});
  const StepBatch batch = idle.load(0);
  EXPECT_THAT(sizes(batch), ElementsAre(0));
  EXPECT_EQ(batch[0].target_count, 0);
}

TEST(StepBatches, StepsDoNotDependOnTheMicroBatch) {
  const BatchSettings one{.global_batch_size = 8, .micro_batch_size = 1, .epochs = 3};
  const StepBatches reference(numbered(30), one);
  for (const int64_t micro : {2, 3, 8, 100}) {
    BatchSettings settings = one;
    settings.micro_batch_size = micro;
    const StepBatches batches(numbered(30), settings);
    ASSERT_EQ(batches.step_count(), reference.step_count());
    for (int64_t step = 0; step < reference.step_count(); ++step) {
      EXPECT_EQ(batches.samples(step), reference.samples(step));
    }
  }
}

TEST(StepBatches, AreAFunctionOfTheStep) {
  const BatchSettings settings{.global_batch_size = 4, .micro_batch_size = 2, .epochs = 2};
  StepBatches forwards(numbered(10), settings);
  StepBatches backwards(numbered(10), settings);
  std::vector<StepBatch> first;
  for (int64_t step = 0; step < 6; ++step) {
    first.push_back(forwards.load(step));
  }
  for (int64_t step = 5; step >= 0; --step) {
    const StepBatch again = backwards.load(step);
    const StepBatch& before = first[static_cast<size_t>(step)];
    ASSERT_EQ(again.size(), before.size());
    for (size_t i = 0; i < again.size(); ++i) {
      EXPECT_TRUE(at::equal(again[i].inputs, before[i].inputs));
      EXPECT_TRUE(at::equal(again[i].labels, before[i].labels));
    }
  }
}

TEST(StepBatches, CountTargetsForOneMeanOverTheStep) {
  // One target of loss 4 and three of loss 1: the mean over targets is 7 / 4; that of the two means
  // would be 2.5.
  StepBatches batches(
      std::make_unique<FakeSource>(std::vector<TokenSample>{
          {{1, 2, 3, 4}, {2, -100, -100, -100}}, {{5, 6, 7, 8}, {6, 7, 8, -100}}}),
      {.global_batch_size = 2, .micro_batch_size = 1, .shuffle = false});
  const StepBatch batch = batches.load(0);
  const double token_loss[] = {4.0, 1.0};
  double loss_sum = 0;
  int64_t targets = 0;
  for (size_t i = 0; i < 2; ++i) {
    loss_sum += token_loss[i] * static_cast<double>(batch[i].target_count);
    targets += batch[i].target_count;
  }
  EXPECT_EQ(loss_sum / static_cast<double>(targets), 1.75);
}

TEST(StepBatches, AllowMicroBatchesAndWindowsWithoutTargets) {
  const TokenSample none{{1, 2}, {-100, -100}};
  const TokenSample one{{3, 4}, {4, -100}};
  StepBatches batches(
      std::make_unique<FakeSource>(std::vector<TokenSample>{none, one, none, none}),
      {.global_batch_size = 2, .micro_batch_size = 1, .shuffle = false});
  const auto targets = [&](int64_t step) {
    const StepBatch batch = batches.load(step);
    return std::pair{batch[0].target_count, batch[1].target_count};
  };
  EXPECT_EQ(targets(0), (std::pair<int64_t, int64_t>{0, 1}));
  EXPECT_EQ(targets(1), (std::pair<int64_t, int64_t>{0, 0}));
  EXPECT_EQ(batches.load(1)[0].token_count, 2);
}

TEST(StepBatches, CountPositionsOfPackedDocuments) {
  const std::vector<TokenSample> rows = {
      {{1, 2, 3, 4}, {2, -100, 4, -100}}, {{5, 6, 7, 0}, {6, 7, -100, -100}}};
  StepBatches batches(
      std::make_unique<FakeSource>(rows, std::vector<std::vector<int64_t>>{{2, 2}, {3}}),
      {.global_batch_size = 2, .micro_batch_size = 2, .shuffle = false});
  const StepBatch batch = batches.load(0);
  EXPECT_EQ(values(batch[0].positions), (Ids{0, 1, 0, 1, 0, 1, 2, 0})); // padding begins anew
  EXPECT_EQ(batch[0].token_count, 7);
  EXPECT_EQ(batch[0].target_count, 4);
  StepBatches plain(numbered(2), {.global_batch_size = 2});
  EXPECT_FALSE(plain.load(0)[0].positions.defined());
}

TEST(StepBatches, TakeSourcesByTheirWeights) {
  StepBatches batches(
      numbered(6),
      {.global_batch_size = 3,
       .micro_batch_size = 3,
       .epochs = 2,
       .seed = 1,
       .mixture = {{.samples = 2, .weight = 3}, {.samples = 4, .weight = 0.5}}});
  EXPECT_EQ(batches.sample_count(), 8); // of an epoch: 2 x 3 and 2 of 4
  EXPECT_EQ(batches.step_count(), 6);
  std::map<int64_t, int> taken;
  for (int64_t step = 0; step < 6; ++step) {
    const StepBatch batch = batches.load(step);
    const Ids inputs = values(batch[0].inputs);
    for (size_t i = 0; i < inputs.size(); i += 2) {
      ++taken[inputs[i] / 10];
    }
  }
  EXPECT_EQ(taken, (std::map<int64_t, int>{{0, 6}, {1, 6}, {2, 1}, {3, 1}, {4, 1}, {5, 1}}));
}

TEST(StepBatches, LoadFeatures) {
  const TemporaryFolder folder;
  const auto path = folder.write(
      "a.safetensors",
      safetensors_text(
          {test_tensor<float>("inputs", "F32", {2, 2}, {1, 2, 3, 4}),
           test_tensor<float>("targets", "F32", {2, 3}, {5, 6, 7, 8, 9, 10})}));
  StepBatches batches(
      std::make_unique<FeatureTensorsFile>(path, 2, 3),
      {.global_batch_size = 2, .micro_batch_size = 2, .shuffle = false});
  const StepBatch batch = batches.load(0);
  ASSERT_EQ(batch.size(), 1);
  EXPECT_TRUE(at::equal(batch[0].inputs, at::tensor({1.F, 2.F, 3.F, 4.F}).view({2, 2})));
  EXPECT_TRUE(at::equal(batch[0].labels, at::tensor({5.F, 6.F, 7.F, 8.F, 9.F, 10.F}).view({2, 3})));
  EXPECT_EQ(batch[0].target_count, 6);
  EXPECT_EQ(batch[0].token_count, 2);
}

} // namespace
} // namespace palimpsest
