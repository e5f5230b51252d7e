// Which samples ranks see, over epochs, stops and resumes on other ranks, and with which rate.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TestFolder;
using ::testing::ThrowsMessage;

/// `samples` samples of one feature, which is the sample's number.
std::string yaml(const TestFolder& folder, int64_t samples) {
  std::vector<float> numbers;
  for (int64_t sample = 0; sample < samples; ++sample) {
    numbers.push_back(static_cast<float>(sample));
  }
  const std::vector<int64_t> shape = {samples, 1};
  std::ofstream(folder / "ids.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("inputs", "F32", shape, numbers),
       test_tensor("targets", "F32", shape, numbers)});
  return fmt::format(
      R"(model: {{family: mlp, input_size: 1, output_size: 1, hidden_size: 4, num_hidden_layers: 1,
  hidden_act: tanh}}
data: {{files: [{}]}}
training: {{micro_batch_size: 1, threads: 1, reproducible: true}}
optimizer: {{learning_rate: 1e-3}}
)",
      folder / "ids.safetensors");
}

using Overrides = std::vector<std::string>;

/// What the ranks of a run load, step by step, in the order of ranks and their micro-batches.
struct Seen {
  std::map<int64_t, std::vector<int64_t>> samples; // by step, from 0
  int64_t steps = 0; // of the whole run
  bool finished = false;
  CheckpointInfo saved; // what the newest checkpoint says at the end
};

/// Runs until `until` steps are done, from where the folder's run is.
Seen see(
    int count,
    const std::string& config,
    const TestFolder& folder,
    const Overrides& more,
    int64_t until) {
  std::vector<std::map<int64_t, std::vector<int64_t>>> by_rank(static_cast<size_t>(count));
  Seen seen;
  testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
    int64_t next = 0; // asked before each step
    std::optional<int64_t> first; // once the run is prepared
    Ranks ranks(world, {.ranks = count, .threads = 1, .stop_requested = [&] {
                          return first && *first + next++ >= until;
                        }});
    palimpsest::Run run(testing::run_config(config, folder, more), ranks);
    run.prepare();
    first = run.position().step;
    const bool finished = run.train({});
    auto& mine = by_rank[static_cast<size_t>(world.rank())];
    for (int64_t step = *first; step < run.position().step; ++step) {
      for (const MicroBatch& batch : run.batches().load(step)) {
        for (int64_t row = 0; row < batch.inputs.size(0); ++row) {
          mine[step].push_back(std::lround(batch.inputs[row][0].item<double>()));
        }
      }
    }
    if (ranks.leads()) {
      seen.finished = finished;
      seen.steps = run.batches().step_count();
      seen.saved = CheckpointReader(run.checkpoint()).info();
    }
  });
  for (const auto& rank : by_rank) {
    for (const auto& [step, ids] : rank) {
      seen.samples[step].insert(seen.samples[step].end(), ids.begin(), ids.end());
    }
  }
  return seen;
}

std::vector<int64_t> sorted(const Seen& seen) {
  std::vector<int64_t> all;
  for (const auto& [step, ids] : seen.samples) {
    all.insert(all.end(), ids.begin(), ids.end());
  }
  std::ranges::sort(all);
  return all;
}

std::vector<int64_t> first_numbers(int64_t count) {
  std::vector<int64_t> numbers(static_cast<size_t>(count));
  for (int64_t number = 0; number < count; ++number) {
    numbers[static_cast<size_t>(number)] = number;
  }
  return numbers;
}

// Five steps of 2 samples x 4 micro-batches x 2 ranks: 80 are used up, the next one is number 80.
TEST(DataPosition, CountsSamplesOverRanksAndMicroBatches) {
  const TestFolder folder;
  const std::string config = yaml(folder, 200);
  const Overrides settings = {
      "data.shuffle=false", "training.micro_batch_size=2", "training.global_batch_size=16"};
  const Seen before = see(2, config, folder, settings, 5);
  EXPECT_FALSE(before.finished);
  EXPECT_EQ(sorted(before), first_numbers(80));
  EXPECT_EQ(before.saved.step(), 5);
  EXPECT_EQ(before.saved.data().consumed(), 80);
  EXPECT_EQ(before.saved.data().position(), 80);
  const Seen after = see(2, config, folder, settings, 6);
  ASSERT_EQ(after.samples.size(), 1U);
  EXPECT_EQ(after.samples.at(5).front(), 80);
  std::vector<int64_t> ids = sorted(after);
  EXPECT_EQ(ids.size(), 16U);
  EXPECT_EQ(ids.back(), 95);
}

// A seed that is given and one that is not; the rest of the epoch has each other sample once.
TEST(DataPosition, OtherRanksTakeTheRestOfTheEpoch) {
  struct Hop {
    int64_t samples;
    int64_t batch;
    int before;
    int after;
  };
  for (const Hop& hop :
       std::vector<Hop>{{12, 4, 4, 2}, {12, 4, 2, 4}, {12, 4, 4, 1}, {14, 6, 2, 3}}) {
    for (const bool seeded : {true, false}) {
      SCOPED_TRACE(fmt::format("{} to {} ranks, seeded {}", hop.before, hop.after, seeded));
      const TestFolder folder;
      const std::string config = yaml(folder, hop.samples);
      Overrides settings = {fmt::format("training.global_batch_size={}", hop.batch)};
      if (seeded) {
        settings.emplace_back("training.seed=7");
      }
      const Seen before = see(hop.before, config, folder, settings, 1);
      EXPECT_EQ(before.saved.data().consumed(), hop.batch);
      EXPECT_EQ(before.saved.seed(), seeded ? 7U : 42U);
      const Seen after = see(hop.after, config, folder, settings, 100);
      EXPECT_TRUE(after.finished);
      std::vector<int64_t> all = sorted(before);
      EXPECT_NE(all, first_numbers(hop.batch)); // shuffled
      for (const int64_t sample : sorted(after)) {
        all.push_back(sample);
      }
      std::ranges::sort(all);
      EXPECT_EQ(all, first_numbers(hop.samples));
      EXPECT_EQ(after.saved.data().consumed(), hop.samples);
    }
  }
}

// Ranks that do not divide the batch would make another batch of it.
TEST(DataPosition, ABatchThatTheRanksDoNotDivideIsRefused) {
  const TestFolder folder;
  const std::string config = yaml(folder, 12);
  see(4, config, folder, {"training.global_batch_size=4"}, 1);
  EXPECT_THAT(
      [&] { see(3, config, folder, {"training.global_batch_size=4"}, 2); },
      ThrowsMessage<Error>(AllOf(HasSubstr("training.global_batch_size: 4"), HasSubstr("3"))));
  EXPECT_THAT(
      [&] { see(3, config, folder, {"training.global_batch_size=3"}, 2); },
      ThrowsMessage<Error>(HasSubstr("training.global_batch_size: 4 -> 3")));
}

// Two epochs of 8 samples on 2 ranks: stopped after the first, the run begins the second; stopped
// after the second, there is nothing left to do.
TEST(DataPosition, AStopAtAnEpochsEndGoesOnWithTheNextEpoch) {
  const TestFolder folder;
  const std::string config = yaml(folder, 8);
  const Overrides settings = {"training.global_batch_size=2", "training.epochs=2"};
  const Finished whole = testing::train_on(2, config, folder, settings);
  std::filesystem::remove_all(folder / "run");
  const Seen first = see(2, config, folder, settings, 4);
  EXPECT_FALSE(first.finished);
  EXPECT_EQ(first.steps, 8);
  EXPECT_EQ(sorted(first), first_numbers(8));
  EXPECT_EQ(first.saved.data().epoch(), 1);
  EXPECT_EQ(first.saved.data().position(), 0);
  const Seen second = see(2, config, folder, settings, 100);
  EXPECT_TRUE(second.finished);
  EXPECT_EQ(second.steps, 8);
  EXPECT_EQ(second.samples.begin()->first, 4);
  EXPECT_EQ(sorted(second), first_numbers(8));
  const Seen third = see(2, config, folder, settings, 100);
  EXPECT_TRUE(third.finished);
  EXPECT_THAT(third.samples, IsEmpty());
  EXPECT_EQ(
      testing::train_on(2, config, folder, settings, /*anew=*/false).parameters, whole.parameters);
}

// Fewer samples than ranks, and a few more: all are used, by steps in which some ranks have none.
TEST(DataPosition, DataSetsSmallerThanTheRanks) {
  for (const int64_t samples : {1, 3, 5}) {
    const TestFolder folder;
    const std::string config = yaml(folder, samples);
    const Overrides settings = {"training.global_batch_size=4"};
    const Finished plain = testing::train(config, folder, settings);
    EXPECT_EQ(plain.records.all.size(), samples > 4 ? 2U : 1U);
    for (const char* zero : {"parallel.zero=0", "parallel.zero=2", "parallel.zero=3"}) {
      Overrides all = settings;
      all.emplace_back(zero);
      const Finished found = testing::train_on(4, config, folder, all);
      EXPECT_EQ(found.records.losses(), plain.records.losses()) << samples << zero;
      EXPECT_EQ(found.records.norms(), plain.records.norms()) << samples << zero;
      EXPECT_EQ(found.parameters, plain.parameters) << samples << zero;
      for (const StepRecord& record : found.records.all) {
        EXPECT_FALSE(record.skipped);
        EXPECT_EQ(record.tokens, record.step == 1 ? std::min<int64_t>(samples, 4) : 1);
      }
    }
    Overrides whole_batches = settings;
    whole_batches.emplace_back("data.drop_last=true");
    if (samples < 4) {
      EXPECT_THAT(
          [&] { testing::train_on(4, config, folder, whole_batches); },
          ThrowsMessage<Error>(AllOf(HasSubstr("drop_last"), HasSubstr(std::to_string(samples)))));
      EXPECT_FALSE(std::filesystem::exists(folder / "run"));
    } else {
      EXPECT_EQ(testing::train_on(4, config, folder, whole_batches).records.all.size(), 1U);
    }
  }
}

TEST(DataPosition, AnEmptyDataSetIsRefusedBeforeTheModelIsMade) {
  const TestFolder folder;
  const std::string config = yaml(folder, 0);
  for (const char* drop : {"data.drop_last=true", "data.drop_last=false"}) {
    EXPECT_THAT(
        [&] {
          testing::train_on(4, config, folder, {"training.global_batch_size=4", drop});
        },
        ThrowsMessage<Error>(AllOf(HasSubstr("ids.safetensors"), HasSubstr("no sample"))));
    EXPECT_FALSE(std::filesystem::exists(folder / "run"));
  }
}

/// A parameter's values in a checkpoint.
std::vector<float> values_at(const TestFolder& folder, int64_t step, const std::string& name) {
  const CheckpointReader reader(folder / fmt::format("run/step-{:08}", step));
  const auto* state = find_state(reader.manifest(), name, kParameterState);
  std::vector<float> values(static_cast<size_t>(declaration_of(*state).elements()));
  reader.read(
      name,
      kParameterState,
      0,
      static_cast<int64_t>(values.size()),
      std::as_writable_bytes(std::span(values)));
  return values;
}

// A warm-up of 10 updates to 1e-3, and biases that learn at a tenth of it: the first step after a
// resume has its own rate, not the base, in both groups. The rate of step k + 1 is that of k updates
// before it.
TEST(DataPosition, TheFirstStepAfterAResumeHasItsRateInEveryGroup) {
  const TestFolder folder;
  const std::string config = yaml(folder, 40);
  const Overrides settings = {
      "training.global_batch_size=2",
      "optimizer.name=sgd",
      "optimizer.groups=[{match: bias, learning_rate_multiplier: 0.1}]",
      "scheduler.warmup_steps=10",
      "checkpoint.save_every=1",
      "parallel.zero=2"};
  const Finished whole = testing::train_on(2, config, folder, settings);
  ASSERT_EQ(whole.records.all.size(), 20U);
  for (const int64_t done : {6, 12}) {
    const double rate = 1e-3 * std::min(1.0, static_cast<double>(done) / 10);
    std::map<std::string, std::vector<float>> before;
    for (const auto& [name, values] : whole.parameters) {
      before[name] = values_at(folder, done, name);
    }
    for (int64_t step = done + 1; step <= 20; ++step) {
      std::filesystem::remove_all(folder / fmt::format("run/step-{:08}", step));
    }
    const Finished rest = testing::train_on(2, config, folder, settings, /*anew=*/false);
    ASSERT_EQ(rest.records.all.size(), static_cast<size_t>(20 - done));
    for (size_t step = 0; step < rest.records.all.size(); ++step) {
      EXPECT_EQ(
          rest.records.all[step].learning_rate,
          whole.records.all[static_cast<size_t>(done) + step].learning_rate);
    }
    EXPECT_NEAR(rest.records.all[0].learning_rate, rate, 1e-12);
    EXPECT_EQ(rest.parameters, whole.parameters);
    for (const auto& [name, gradient] : rest.gradients) { // of its first step
      const double own = name.ends_with("bias") ? 0.1 * rate : rate;
      const std::vector<float> after = values_at(folder, done + 1, name);
      for (size_t index = 0; index < gradient.size(); ++index) {
        const double moved = double{before[name][index]} - double{after[index]};
        EXPECT_NEAR(moved, own * gradient[index], 1e-6 * std::abs(before[name][index]) + 1e-9)
            << name;
      }
    }
  }
}

} // namespace
} // namespace palimpsest
