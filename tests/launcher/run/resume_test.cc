// Covers: launcher/compose/ranks.cc
// Covers: launcher/compose/saved_states.cc
// A run that is saved and goes on is the run that never stopped, bit for bit, on any layout.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/launcher/compose/checkpoint_export.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <ATen/ops/empty.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <mutex>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

/// 21 samples in batches of 12 and 9, so that epochs end inside the run, one of them with the save.
std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 21 * 13, 7);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256, dropout: 0.1}}
data: {{files: [{}], format: text, sequence_length: 12}}
training: {{steps: 10, global_batch_size: 12, micro_batch_size: 1, threads: 1, reproducible: true}}
optimizer: {{learning_rate: 1e-2, weight_decay: 0.1, max_grad_norm: 1}}
scheduler: {{name: cosine, warmup_steps: 3}}
checkpoint: {{save_every: 5}}
)",
      folder / "text.txt");
}

/// How a run is laid out over ranks.
struct Layout {
  int ranks;
  int zero;
  int micro = 1;
};

std::vector<std::string> overrides(const Layout& layout, const std::string& precision) {
  return {
      fmt::format("parallel.zero={}", layout.zero),
      fmt::format("training.micro_batch_size={}", layout.micro),
      "precision=" + precision};
}

std::vector<std::string> lines(const std::string& path) {
  std::ifstream file(path);
  std::vector<std::string> found;
  for (std::string line; std::getline(file, line);) {
    found.push_back(line);
  }
  return found;
}

/// The bytes of every state of a checkpoint, by name and kind.
std::map<std::string, std::string> states(const std::string& folder) {
  const CheckpointReader reader(folder);
  std::map<std::string, std::string> found;
  for (const CheckpointManifest::Tensor& tensor : reader.manifest().tensors()) {
    const StateDeclaration whole = declaration_of(tensor);
    std::string bytes(static_cast<size_t>(whole.elements()) * 4, '\0');
    if (whole.dtype == StoredDtype::BF16) {
      bytes.resize(bytes.size() / 2);
    }
    reader.read(
        whole.name, whole.state, 0, whole.elements(), std::as_writable_bytes(std::span(bytes)));
    found[whole.name + " " + whole.state] = bytes;
  }
  return found;
}

/// Removes what came after step 5, as if the run had been killed then.
void forget_after_five(const TestFolder& folder) {
  std::filesystem::remove_all(folder / "run/step-00000010");
  std::filesystem::remove_all(folder / "run/model");
}

// All ranks agree that nothing is left, and that the model has to be written where it is not there.
TEST(Resume, ARunThatIsDoneHasNothingLeftOnceItsModelIsWritten) {
  for (const int count : {1, 2, 3}) {
    const TestFolder folder;
    testing::train_on(count, yaml(folder), folder);
    const auto nothing_left = [&](const std::vector<std::string>& changes) {
      std::mutex mutex;
      std::vector<bool> found;
      testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
        Ranks ranks(world, {.ranks = count, .threads = 1});
        const palimpsest::Run run(testing::run_config(yaml(folder), folder, changes), ranks);
        const std::lock_guard lock(mutex);
        found.push_back(run.nothing_left());
      });
      return found;
    };
    const std::vector<bool> all(static_cast<size_t>(count), true);
    const std::vector<bool> none(static_cast<size_t>(count), false);
    EXPECT_EQ(nothing_left({}), all) << count;
    std::filesystem::remove_all(folder / "run/model");
    EXPECT_EQ(nothing_left({}), none) << count;
  }
}

// With one micro-batch per sample every layout gives the same bits, so the whole run of one process
// is the measure for all: saved on one layout at step 5, gone on with on another.
TEST(Resume, AnyLayoutGoesOnFromAnyOther) {
  std::vector<std::pair<Layout, Layout>> hops = {
      {{1, 0}, {1, 0}},
      {{4, 3}, {1, 0}},
      {{4, 2}, {2, 3}},
      {{3, 1}, {4, 3}},
      {{4, 0}, {3, 2}},
      {{1, 0}, {4, 3}},
      {{2, 3}, {4, 1}},
  };
  if (std::getenv("PALIMPSEST_FULL") != nullptr) { // every layout to every other
    hops.clear();
    for (int code = 0; code < 256; ++code) {
      hops.push_back({{1 + code % 4, code / 4 % 4}, {1 + code / 16 % 4, code / 64}});
    }
  }
  for (const std::string& precision : testing::kPrecisions) {
    const TestFolder folder;
    const std::string config = yaml(folder);
    const Finished whole = testing::train(config, folder, overrides({1, 0}, precision));
    const auto expected = states(folder / "run/step-00000010");
    const auto middle = states(folder / "run/step-00000005");
    for (const auto& [before, after] : hops) {
      SCOPED_TRACE(fmt::format(
          "{}: {} ranks zero {} -> {} ranks zero {}",
          precision,
          before.ranks,
          before.zero,
          after.ranks,
          after.zero));
      testing::train_on(before.ranks, config, folder, overrides(before, precision));
      EXPECT_EQ(states(folder / "run/step-00000005"), middle);
      forget_after_five(folder);
      const Finished rest =
          testing::train_on(after.ranks, config, folder, overrides(after, precision), false);
      ASSERT_EQ(rest.records.all.size(), 5U);
      for (size_t step = 0; step < 5; ++step) {
        const StepRecord& now = rest.records.all[step];
        const StepRecord& then = whole.records.all[step + 5];
        EXPECT_EQ(now.step, then.step);
        EXPECT_EQ(now.loss, then.loss);
        EXPECT_EQ(now.grad_norm, then.grad_norm);
        EXPECT_EQ(now.learning_rate, then.learning_rate);
        EXPECT_EQ(now.loss_scale, then.loss_scale);
      }
      EXPECT_EQ(rest.parameters, whole.parameters);
      EXPECT_EQ(states(folder / "run/step-00000010"), expected);
      EXPECT_EQ(lines(folder / "run/metrics.jsonl").size(), 10U);
    }
  }
}

// Two samples a micro-batch instead of one: other sums, the same samples in the same steps.
TEST(Resume, AnotherMicroBatchTakesUpTheSamplesWhereTheyWereLeft) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  Finished whole = testing::train(config, folder, overrides({1, 0}, "fp32"));
  whole.run.reset(); // an output folder is one run's at a time
  forget_after_five(folder);
  const Finished rest =
      testing::train_on(2, config, folder, overrides({2, 2, 2}, "fp32"), /*anew=*/false);
  ASSERT_EQ(rest.records.all.size(), 5U);
  for (size_t step = 0; step < 5; ++step) {
    const double loss = whole.records.all[step + 5].loss;
    EXPECT_NEAR(rest.records.all[step].loss, loss, 1e-5 * loss);
    EXPECT_EQ(rest.records.all[step].tokens, whole.records.all[step + 5].tokens);
  }
}

TEST(Resume, SavesAtTheEndAndExportsAsTrainingDoes) {
  const TestFolder folder;
  testing::train_on(3, yaml(folder), folder, {"training.steps=7", "parallel.zero=3"});
  EXPECT_TRUE(std::filesystem::exists(folder / "run/step-00000007"));
  export_checkpoint(folder / "run/step-00000007", folder / "exported");
  for (const char* name : {"model.safetensors", "config.json"}) {
    EXPECT_EQ(
        read_file(folder / (std::string("exported/") + name)),
        read_file(folder / (std::string("run/model/") + name)));
  }
}

// A changed byte in what step 10 holds: auto goes on from step 5, and says so; else it is an error.
TEST(Resume, ADamagedCheckpointMakesWayForAnOlderOneWhereAuto) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const Finished whole = testing::train_on(2, config, folder, {"parallel.zero=2"});
  const std::string file = folder / "run/step-00000010/rank-00001.safetensors";
  std::fstream damaged(file, std::ios::in | std::ios::out | std::ios::binary);
  damaged.seekp(-1, std::ios::end);
  const int last = damaged.peek();
  damaged.put(static_cast<char>(last ^ 1));
  damaged.close();
  EXPECT_THAT(
      [&] { testing::train_on(2, config, folder, {"parallel.zero=2"}, false); },
      ThrowsMessage<Error>(HasSubstr("rank-00001.safetensors")));
  const Finished rest = testing::train_on(
      2, config, folder, {"parallel.zero=2", "checkpoint.resume=auto"}, /*anew=*/false);
  EXPECT_EQ(rest.records.all.size(), 5U);
  EXPECT_EQ(rest.parameters, whole.parameters);
}

TEST(Resume, AFinishedRunHasNothingLeftToDo) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  Finished whole = testing::train(config, folder);
  whole.run.reset(); // an output folder is one run's at a time
  const Finished again = testing::train_on(1, config, folder, {}, /*anew=*/false);
  EXPECT_TRUE(again.records.all.empty());
  EXPECT_EQ(again.parameters, whole.parameters);
  EXPECT_EQ(lines(folder / "run/metrics.jsonl").size(), 10U);
}

// The request comes while step 3 runs; all ranks stop before step 4, with a checkpoint of step 3.
TEST(Resume, ARequestOnOneRankStopsAllAndSaves) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const Finished whole = testing::train_on(2, config, folder, overrides({2, 2}, "fp32"));
  std::filesystem::remove_all(folder / "run");
  testing::on_ranks(2, [&](Communicator& world, MemoryContext&) {
    bool prepared = false;
    int asked = 0;
    const auto stop = [&] { return prepared && ++asked == 4 && world.rank() == 1; };
    Ranks ranks(world, {.ranks = 2, .threads = 1, .stop_requested = stop});
    palimpsest::Run run(testing::run_config(config, folder, overrides({2, 2}, "fp32")), ranks);
    run.prepare();
    prepared = true;
    EXPECT_FALSE(run.train({}));
    EXPECT_EQ(run.position().step, 3);
    EXPECT_EQ(run.checkpoint().filename(), "step-00000003");
  });
  const Finished rest =
      testing::train_on(2, config, folder, overrides({2, 2}, "fp32"), /*anew=*/false);
  EXPECT_EQ(rest.records.all.size(), 7U);
  EXPECT_EQ(rest.parameters, whole.parameters);
}

TEST(Resume, WhatWouldChangeTheNumbersIsRefusedAndListed) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  testing::train(config, folder);
  EXPECT_THAT(
      [&] {
        testing::train_on(
            2, config, folder, {"optimizer.learning_rate=2e-2", "training.seed=7"}, false);
      },
      ThrowsMessage<Error>(AllOf(
          HasSubstr("optimizer.learning_rate: 0.01 -> 0.02"),
          HasSubstr("training.seed: 42 -> 7"),
          HasSubstr("--allow-change"))));
  forget_after_five(folder);
  testing::on_ranks(2, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = 2, .threads = 1});
    palimpsest::Run run(
        testing::run_config(config, folder, {"optimizer.learning_rate=2e-2"}),
        ranks,
        /*allow_change=*/true);
    run.prepare();
    testing::Records records;
    run.train({&records});
    ASSERT_EQ(records.all.size(), 5U);
    EXPECT_NEAR(records.all[0].learning_rate, 2e-2 * 0.5 * (1 + std::cos(M_PI * 2 / 7)), 1e-9);
  });
  std::ofstream(folder / "text.txt", std::ios::app) << std::string(100, 'x');
  EXPECT_THAT(
      [&] { testing::train_on(1, config, folder, {"optimizer.learning_rate=2e-2"}, false); },
      ThrowsMessage<Error>(HasSubstr("samples an epoch")));
}

// A master and the parameter of a run in fp32 are the same numbers: nothing is lost either way.
TEST(Resume, ComputesInAnotherTypeWhereThatIsAllowed) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::pair<std::string, std::string>> changes = {
      {"bf16", "fp32"}, {"fp32", "bf16"}};
  for (const auto& [before, after] : changes) {
    SCOPED_TRACE(before + " -> " + after);
    const Finished whole = testing::train_on(3, config, folder, overrides({3, 3}, before));
    forget_after_five(folder);
    EXPECT_THAT(
        [&] {
          testing::train_on(2, config, folder, overrides({2, 1}, after), false);
        },
        ThrowsMessage<Error>(AllOf(
            HasSubstr("precision.compute: " + before + " -> " + after),
            HasSubstr("--allow-change"))));
    const auto saved = states(folder / "run/step-00000005");
    palimpsest::Run run(
        testing::run_config(config, folder, overrides({1, 0}, after)), /*allow_change=*/true);
    run.prepare();
    std::map<std::string, std::vector<float>> read;
    testing::add_parameters(run, read);
    for (const auto& [name, values] : read) {
      const std::string& bytes = saved.at(name + (before == "bf16" ? " master" : " parameter"));
      ASSERT_EQ(bytes.size(), values.size() * sizeof(float)) << name;
      EXPECT_EQ(std::memcmp(bytes.data(), values.data(), bytes.size()), 0) << name;
    }
    testing::Records records;
    EXPECT_TRUE(run.train({&records}));
    ASSERT_EQ(records.all.size(), 5U);
    for (size_t step = 0; step < 5; ++step) {
      const double loss = whole.records.all[step + 5].loss;
      EXPECT_NEAR(records.all[step].loss, loss, 2e-2 * loss);
    }
    EXPECT_EQ(
        states(folder / "run/step-00000010").count("model.norm.weight master"),
        after == "bf16" ? 1 : 0);
  }
}

/// What `bytes` of a state hold.
std::vector<float> numbers(const std::string& bytes, bool bf16) {
  const auto count = static_cast<int64_t>(bytes.size() / (bf16 ? 2 : 4));
  at::Tensor values = at::empty({count}, bf16 ? at::kBFloat16 : at::kFloat);
  std::memcpy(values.mutable_data_ptr(), bytes.data(), bytes.size());
  values = values.to(at::kFloat);
  const float* first = values.const_data_ptr<float>();
  return {first, first + count};
}

// Masters become weights, and moments wide or narrow, to the nearest.
TEST(Resume, ConvertsStatesWhereThatIsAllowed) {
  const std::string narrow = testing::kPrecisions[2];
  const std::string half = testing::kPrecisions[3];
  for (const auto& [before, after] :
       {std::pair(std::string("bf16"), narrow),
        std::pair(narrow, std::string("fp32")),
        std::pair(narrow, half),
        std::pair(half, std::string("bf16"))}) {
    SCOPED_TRACE(before + " -> " + after);
    const TestFolder folder;
    const std::string config = yaml(folder);
    testing::train_on(2, config, folder, overrides({2, 2}, before));
    forget_after_five(folder);
    EXPECT_THAT(
        [&] {
          testing::train_on(1, config, folder, overrides({1, 0}, after), false);
        },
        ThrowsMessage<Error>(AllOf(HasSubstr("precision."), HasSubstr("--allow-change"))));
    const auto saved = states(folder / "run/step-00000005");
    palimpsest::Run run(
        testing::run_config(config, folder, overrides({1, 0}, after)), /*allow_change=*/true);
    run.prepare();
    std::map<std::string, std::vector<float>> read;
    testing::add_parameters(run, read);
    for (const auto& [name, values] : read) {
      const auto master = saved.find(name + " master");
      std::vector<float> wanted = master != saved.end()
          ? numbers(master->second, false)
          : numbers(saved.at(name + " parameter"), before == narrow);
      for (float& value : wanted) {
        value = after == narrow ? static_cast<float>(c10::BFloat16(value)) : value;
      }
      EXPECT_EQ(values, wanted) << name;
    }
    testing::Records records;
    EXPECT_TRUE(run.train({&records}));
    ASSERT_EQ(records.all.size(), 5U);
    EXPECT_EQ(records.all.front().loss_scale.has_value(), after == half);
    const auto ended = states(folder / "run/step-00000010");
    EXPECT_EQ(ended.count("model.norm.weight master"), after == "fp32" || after == narrow ? 0 : 1);
    const bool small = after == narrow || after == half;
    EXPECT_EQ(ended.at("model.norm.weight moment.1").size(), 24U * (small ? 2 : 4));
  }
}

// A failure of one rank is everybody's, named once.
TEST(Resume, AnErrorOfOneRankEndsAll) {
  std::vector<std::string> messages(3);
  testing::on_ranks(3, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = 3});
    try {
      ranks.together([] {});
      EXPECT_FALSE(ranks.failed_together());
      ranks.together([&] {
        if (world.rank() == 1) {
          throw UserError("no file x");
        }
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 2);
      EXPECT_TRUE(ranks.failed_together());
      messages[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_THAT(messages, ::testing::Each(std::string("rank 1: no file x")));
}

// Within a part that a rank has left by an error, the others learn of it where they add up.
TEST(Resume, AnErrorBeforeASumEndsAll) {
  for (const int late : {0, 1, 2}) { // sums before the error
    std::vector<std::string> messages(3);
    testing::on_ranks(3, [&](Communicator& world, MemoryContext&) {
      Ranks ranks(world, {.ranks = 3});
      try {
        ranks.together([&] {
          for (int64_t round = 0; round < 3; ++round) {
            if (world.rank() == 1 && round == late) {
              throw UserError("no file x");
            }
            std::vector<int64_t> numbers = {world.rank(), round};
            ranks.sum(numbers);
            EXPECT_EQ(numbers, (std::vector<int64_t>{3, 3 * round}));
          }
        });
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 2);
        messages[static_cast<size_t>(world.rank())] = error.what();
      }
    });
    EXPECT_THAT(messages, ::testing::Each(std::string("rank 1: no file x"))) << late;
  }
}

// Memory that runs out on one rank is the environment's error of all, with what was wanted.
TEST(Resume, AShortageOfOneRankEndsAllWithItsBytes) {
  std::vector<std::string> messages(2);
  testing::on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
    Ranks ranks(world, {.ranks = 2});
    try {
      ranks.together([&] {
        if (world.rank() == 1) {
          memory.set_allocation_hook(fail_at_allocation(1));
          at::empty({6}, at::kByte);
        }
      });
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 1);
      messages[static_cast<size_t>(world.rank())] = error.what();
    }
  });
  EXPECT_THAT(
      messages,
      ::testing::Each(HasSubstr("rank 1: injected failure of allocation 1, which wanted 6")));
}

} // namespace
} // namespace palimpsest
