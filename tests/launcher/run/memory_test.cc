// What plans promise of memory and work, against what runs really hold and execute.

#include <palimpsest/core/device/rss.h>
#include <palimpsest/memory/track/tracker.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>

#include <fmt/format.h>

#include <random>

namespace palimpsest {
namespace {

using testing::Finished;
using testing::TestFolder;

void write_tokens(const std::string& path, int count, int vocabulary) {
  std::mt19937 random(7);
  std::vector<uint16_t> ids(static_cast<size_t>(count));
  for (uint16_t& id : ids) {
    id = static_cast<uint16_t>(random() % static_cast<unsigned>(vocabulary));
  }
  std::ofstream(path, std::ios::binary).write(reinterpret_cast<const char*>(ids.data()), count * 2);
}

std::string yaml(const TestFolder& folder) {
  write_tokens(folder / "tokens.bin", 128 * 16, 256);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 128, num_hidden_layers: 12, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 352, vocab_size: 256}}
data: {{files: [{}], sequence_length: 128}}
training: {{steps: 3, global_batch_size: 8, micro_batch_size: 4, threads: 2}}
optimizer: {{learning_rate: 1e-3}}
)",
      folder / "tokens.bin");
}

const std::vector<std::string> kPolicies = {
    "none",
    "full",
    "{policy: every_n, n: 3}",
    "{policy: uniform, segments: 4}",
    "sqrt",
    "{policy: key_layers, recompute: [\"model.layers.[0-5]\"]}",
    "{policy: key_layers, count: 4}",
};

TEST(PlannedMemory, MeasuredPeakIsWithinFivePercentOfThePlans) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  std::map<std::string, int64_t> activations;
  for (const std::string& precision : testing::kPrecisions) {
    const bool usual = precision == "fp32" || precision == "bf16";
    for (const std::string& policy : usual ? kPolicies : std::vector{kPolicies[0], kPolicies[4]}) {
      for (const char* tape : {"full", "lean"}) {
        const Finished finished = testing::train(
            config,
            folder,
            {"activation_checkpointing=" + policy,
             std::string("activation_checkpointing.tape=") + tape,
             "precision=" + precision});
        const auto predicted =
            static_cast<double>(finished.run->full_report().peak(TierId::kDevice));
        const auto measured = static_cast<double>(finished.records.all.back().peak_device_bytes);
        const std::string what = fmt::format("{} {} {}", precision, policy, tape);
        EXPECT_NEAR(measured / predicted, 1, 0.05) << what;
        if (std::string(tape) == "full" && precision == "fp32") {
          activations[policy] = finished.run->memory().usage(Category::kActivations).peak;
          EXPECT_NEAR(
              static_cast<double>(activations[policy]) /
                  static_cast<double>(finished.run->full_report().ranks.front().activation_peak),
              1,
              0.05)
              << what;
        }
      }
    }
  }
  EXPECT_LE(activations.at("full"), activations.at("none") / 4);
}

TEST(PlannedMemory, NextToNothingIsUnattributed) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  for (const std::string& policy : kPolicies) {
    MemoryContext& process = MemoryContext::process(); // holds what other tests left, too
    const int64_t before = process.total().live;
    process.begin_interval();
    const Finished finished =
        testing::train(config, folder, {"activation_checkpointing=" + policy});
    const MemoryContext& memory = finished.run->memory();
    EXPECT_LE(
        memory.usage(Category::kUnattributed).peak + process.interval_peak() - before,
        memory.total().peak / 100)
        << policy;
  }
}

// Beyond what is tracked a run holds compiled kernels, rounding and freed memory kept for reuse.
TEST(PlannedMemory, WhatIsNotTrackedIsBounded) {
  if (!reset_peak_rss()) {
    GTEST_SKIP() << "this system does not permit resetting the peak";
  }
  const TestFolder folder;
  const int64_t before = current_rss();
  const Finished finished = testing::train(yaml(folder), folder);
  const int64_t tracked = finished.records.all.back().peak_device_bytes;
  EXPECT_LE(peak_rss() - before - tracked, int64_t{96} << 20);
}

// Five million parameters with Adam's states on two ranks: making them takes no more than training.
TEST(PlannedMemory, StatesAreMadeWithinTheMemoryOfASteadyStep) {
  const TestFolder folder;
  const std::vector<float> numbers(8, 1);
  std::ofstream(folder / "data.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("inputs", "F32", {4, 2}, numbers),
       test_tensor("targets", "F32", {4, 2}, numbers)});
  const std::string config = fmt::format(
      R"(model: {{family: mlp, input_size: 2, output_size: 2, hidden_size: 1000, num_hidden_layers: 6}}
data: {{files: [{}]}}
training: {{steps: 5, global_batch_size: 2, micro_batch_size: 1, threads: 1}}
optimizer: {{learning_rate: 1e-3}}
)",
      folder / "data.safetensors");
  for (const int zero : {1, 2, 3}) {
    std::filesystem::remove_all(folder / "run");
    testing::on_ranks(2, [&](Communicator& world, MemoryContext&) {
      Ranks ranks(world, {.ranks = 2, .threads = 1});
      palimpsest::Run run(
          testing::run_config(config, folder, {fmt::format("parallel.zero={}", zero)}), ranks);
      run.memory().reset_peaks();
      const int64_t before = run.memory().total().live;
      run.prepare();
      const auto made = static_cast<double>(run.memory().total().peak - before);
      // Halves of two moments, and of parameters where they are shared too.
      EXPECT_GT(made, 4 * 4.9e6 * (zero == 3 ? 1.5 : 2));
      testing::Records records;
      run.train({&records});
      const auto steady = static_cast<double>(records.all.back().peak_device_bytes - before);
      EXPECT_LE(made, 1.1 * steady) << "zero " << zero;
    });
  }
}

TEST(PlannedMemory, EveryOperationStaysWithinThePlan) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  for (const std::string& policy : kPolicies) {
    palimpsest::Run run(load_config_text(
        config,
        "test.yaml",
        {"activation_checkpointing=" + policy,
         "training.output=" + (folder / "run"),
         "training.restart=true"}));
    MemoryTracker tracker(run.memory());
    run.prepare();
    run.train({&tracker});
    const std::vector<int64_t>& planned = run.full_report().ranks.front().device_bytes;
    ASSERT_EQ(tracker.ops().size(), planned.size());
    for (size_t index = 0; index < planned.size(); ++index) {
      EXPECT_LE(
          static_cast<double>(tracker.ops()[index].peak),
          1.05 * static_cast<double>(planned[index]))
          << policy << " " << to_text(run.full_plan().plan[index]);
    }
  }
}

} // namespace
} // namespace palimpsest
