// Covers: launcher/compose/replanner.cc
// A budget in bytes: what is planned under it stays under it, and what cannot is refused.

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdlib>
#include <random>
#include <span>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TestFolder;

std::string decoder(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 64 * 65, 3);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 64, num_hidden_layers: 6, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 176, vocab_size: 256, dropout: 0.1}}
data: {{files: [{}], format: text, sequence_length: 64}}
training: {{steps: 2, global_batch_size: 8, micro_batch_size: 4, threads: 2}}
optimizer: {{learning_rate: 1e-3}}
)",
      folder / "text.txt");
}

/// The same with only some parameters trained, the others' weights held in codes.
std::string frozen_decoder(
    const TestFolder& folder,
    const std::string& type,
    const std::string& expressions = R"(['layers\.[0-25]\.', embed])") {
  std::string yaml = decoder(folder);
  const std::string threads = "threads: 2";
  yaml.insert(yaml.find(threads) + threads.size(), ", freeze: " + expressions);
  return yaml + fmt::format("precision: {{compute: bf16, frozen: {}}}\n", type);
}

std::string mlp(const TestFolder& folder, const std::string& hidden) {
  const TensorDeclaration inputs{"inputs", StoredDtype::F32, {512, 256}};
  const TensorDeclaration targets{"targets", StoredDtype::F32, {512, 8}};
  SafetensorsWriter writer(folder / "rows.safetensors", {inputs, targets});
  std::mt19937 random(11);
  for (const StoredTensor& tensor : writer.tensors()) {
    std::vector<float> numbers(static_cast<size_t>(tensor.elements()));
    for (float& number : numbers) {
      number = static_cast<float>(random() % 1000) / 500 - 1;
    }
    writer.write(tensor.name, std::as_bytes(std::span(numbers)));
  }
  writer.commit();
  return fmt::format(
      R"(model: {{family: mlp, input_size: 256, output_size: 8, {}}}
data: {{files: [{}], format: tensors}}
training: {{steps: 2, global_batch_size: 512, micro_batch_size: 256, threads: 2}}
optimizer: {{learning_rate: 1e-3}}
)",
      hidden,
      folder / "rows.safetensors");
}

std::vector<std::string> chains(const TestFolder& folder) {
  return {
      decoder(folder),
      frozen_decoder(folder, "nf4"),
      frozen_decoder(folder, "fp32"),
      frozen_decoder(folder, "int8", "[k_proj, up_proj, embed]"),
      mlp(folder, "hidden_size: 256, num_hidden_layers: 12"),
      mlp(folder, "hidden_sizes: [1024, 768, 512, 384, 256, 192, 128, 96, 64, 48, 32]")};
}

/// What the constructor of a run says.
std::string refusal(
    const std::string& config,
    const TestFolder& folder,
    const std::vector<std::string>& overrides) {
  try {
    const auto run =
        std::make_unique<palimpsest::Run>(testing::run_config(config, folder, overrides));
  } catch (const UserError& error) {
    return error.what();
  }
  return "";
}

/// The number of bytes in "..., which takes 185 MiB (193986560 bytes) at least by ...".
int64_t least_told(const std::string& message) {
  return std::stoll(message.substr(message.find(" (") + 2));
}

/// A budget under which everything is kept, and the least that auto can do with.
std::pair<int64_t, int64_t> bounds(const std::string& config, const TestFolder& folder) {
  std::filesystem::remove_all(folder / "run"); // of another chain
  const auto told = [&](const char* policy) {
    const std::string chosen = fmt::format("activation_checkpointing={}", policy);
    return least_told(refusal(config, folder, {chosen, "memory.device_budget=1"}));
  };
  return {told("none"), told("auto")};
}

TEST(Budget, IsNeverExceededAndChangesNoBit) {
  const TestFolder folder;
  const int count = std::getenv("PALIMPSEST_FULL") != nullptr ? 10 : 3;
  for (const std::string& config : chains(folder)) {
    const auto [most, least] = bounds(config, folder);
    EXPECT_LT(least, most - most / 50);
    const Finished plain = testing::train(config, folder);
    for (int number = 0; number < count; ++number) {
      const int64_t budget = least + (most - least) * number / (count - 1);
      SCOPED_TRACE(fmt::format("{} of {} to {}\n{}", budget, least, most, config));
      const Finished found = testing::train(
          config,
          folder,
          {fmt::format("memory.device_budget={}", budget), "activation_checkpointing=auto"});
      const auto measured = found.records.all.back().peak_device_bytes;
      const auto predicted = found.run->full_report().peak(TierId::kDevice);
      EXPECT_LE(measured, budget);
      EXPECT_LE(predicted, budget);
      EXPECT_NEAR(static_cast<double>(measured) / static_cast<double>(predicted), 1, 0.03);
      EXPECT_EQ(found.records.losses(), plain.records.losses());
      EXPECT_EQ(found.parameters, plain.parameters);
    }
  }
}

TEST(Budget, EveryPlannerKeepsIt) {
  const TestFolder folder;
  const std::string config = decoder(folder);
  const auto [most, least] = bounds(config, folder);
  const Finished plain = testing::train(config, folder);
  for (const char* policy : {"chen_greedy", "revolve", "dynamic_programming", "auto"}) {
    const int64_t budget = (least + 2 * most) / 3;
    SCOPED_TRACE(policy);
    const Finished found = testing::train(
        config,
        folder,
        {fmt::format("memory.device_budget={}", budget),
         fmt::format("activation_checkpointing={}", policy)});
    EXPECT_LE(found.records.all.back().peak_device_bytes, budget);
    EXPECT_EQ(found.records.losses(), plain.records.losses());
  }
}

TEST(Budget, TheLeastThatTheMessageNamesIsExactlyEnough) {
  const TestFolder folder;
  const std::string config = decoder(folder);
  for (const char* policy : {"auto", "full", "none", "dynamic_programming"}) {
    const std::string chosen = fmt::format("activation_checkpointing={}", policy);
    SCOPED_TRACE(policy);
    const std::string message = refusal(config, folder, {chosen, "memory.device_budget=1"});
    EXPECT_THAT(
        message,
        AllOf(
            HasSubstr("memory.device_budget: 1 B is not enough for a step, which takes"),
            HasSubstr("optimizer "),
            HasSubstr(" could do with ")));
    const int64_t least = least_told(message);
    const auto with = [&](int64_t budget) {
      return refusal(config, folder, {chosen, fmt::format("memory.device_budget={}", budget)});
    };
    EXPECT_EQ(with(least), "");
    EXPECT_THAT(with(least - 1), HasSubstr("is not enough for a step"));
    EXPECT_EQ(with(int64_t{1} << 60), "");
  }
}

TEST(Budget, NoneNegativeAndAbsurdOnesAreRefused) {
  const TestFolder folder;
  const std::string config = decoder(folder);
  for (const char* budget : {"0", "-1", "-8GiB", "12 parsecs", "1e30GiB"}) {
    EXPECT_THAT(
        refusal(config, folder, {fmt::format("memory.device_budget='{}'", budget)}),
        HasSubstr("memory.device_budget"))
        << budget;
  }
}

// A plan that promised too little: the limit is below what it needs, so the step is planned anew
// with what was measured, on all ranks, and goes on with the same bits.
TEST(Budget, ALimitBelowThePromiseMakesATighterPlan) {
  const TestFolder folder;
  const std::string config = decoder(folder);
  const auto [most, least] = bounds(config, folder);
  const std::vector<std::string> overrides = {
      "activation_checkpointing=auto",
      fmt::format("memory.device_budget={}", most * 2),
      "training.micro_batch_size=2"};
  const Finished plain = testing::train_on(2, config, folder, overrides);
  std::filesystem::remove_all(folder / "run");
  std::mutex mutex;
  testing::on_ranks(2, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = 2, .threads = 1});
    palimpsest::Run run(testing::run_config(config, folder, overrides), ranks);
    run.prepare();
    const int64_t promised = run.full_report().peak(TierId::kDevice);
    if (ranks.rank() == 1) {
      run.memory().set_limit(promised * 9 / 10);
    }
    testing::Records records;
    run.train({&records});
    EXPECT_LE(run.full_report().peak(TierId::kDevice), promised * 9 / 10);
    const std::scoped_lock lock(mutex);
    EXPECT_EQ(records.losses(), plain.records.losses());
    EXPECT_EQ(records.norms(), plain.records.norms());
  });
}

// Nothing tighter is left: the run ends, on all ranks, with who, where, how much and what would help.
TEST(Budget, WhereNothingFitsTheMessageSaysWhatWouldHelp) {
  const TestFolder folder;
  const std::string config = decoder(folder);
  for (const int victim : {0, 1}) {
    std::filesystem::remove_all(folder / "run");
    testing::on_ranks(2, [&](Communicator& world, MemoryContext&) {
      Ranks ranks(world, {.ranks = 2, .threads = 1});
      palimpsest::Run run(testing::run_config(config, folder, {}), ranks);
      run.prepare();
      if (ranks.rank() == victim) {
        run.memory().set_limit(run.full_report().peak(TierId::kDevice) / 2);
      }
      try {
        run.train({});
        ADD_FAILURE() << "trained without the memory it needs";
      } catch (const Error& error) {
        EXPECT_EQ(error.exit_code(), 1);
        EXPECT_THAT(
            error.what(),
            AllOf(
                HasSubstr(fmt::format("rank {}: out of memory in ", victim)),
                Not(HasSubstr(fmt::format("rank {0}: rank {0}", victim))),
                HasSubstr(" wanted, "),
                HasSubstr(" held: "),
                HasSubstr("activation_checkpointing=auto could do with ")));
      }
      EXPECT_EQ(run.position().step, 0);
    });
  }
}

} // namespace
} // namespace palimpsest
