// Covers: launcher/compose/saved_states.cc
// Models that no config names, saved on some ranks and gone on with on others: frozen parts,
// parameters with fewer elements than ranks, an optimizer whose memory shows in closed form.

#include <palimpsest/core/models/autograd_block.h>
#include <palimpsest/core/models/frozen_codec.h>
#include <palimpsest/core/optim/adamw.h>
#include <palimpsest/launcher/compose/checkpoint_export.h>
#include <palimpsest/tests/launcher/run/chain_run.h>
#include <palimpsest/tests/launcher/run/chains.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/mean.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace palimpsest {
namespace {

using testing::ChainEnd;
using testing::ChainLayout;
using testing::ChainRun;
using testing::ChainTask;
using ::testing::ElementsAre;
using testing::TestFolder;
using testing::tiny_decoder;

struct Layout {
  int ranks;
  int zero;
};

/// Trains until `steps`, from the checkpoint of an earlier step where one is given, and saves.
ChainEnd train_and_save(
    const ChainTask& task,
    const Layout& layout,
    int64_t steps,
    const std::filesystem::path& output,
    int64_t from = 0) {
  std::mutex mutex;
  ChainEnd end;
  testing::on_ranks(layout.ranks, [&](Communicator& world, MemoryContext& memory) {
    ChainRun run(world, memory, task, {.zero = layout.zero});
    if (from > 0) {
      run.load(output / step_folder(from));
    }
    auto records = run.train(steps);
    auto parameters = run.parameters();
    run.save(output);
    const std::lock_guard lock(mutex);
    if (world.rank() == 0) {
      end = {std::move(records), std::move(parameters)};
    }
  });
  return end;
}

/// The bytes of a state of a checkpoint.
std::vector<std::byte> state_bytes(
    const CheckpointReader& reader,
    const CheckpointManifest::Tensor& tensor) {
  const StateDeclaration whole = declaration_of(tensor);
  std::vector<std::byte> bytes(
      static_cast<size_t>(whole.elements() * bits_per_element(whole.dtype) / 8));
  reader.read(whole.name, whole.state, 0, whole.elements(), bytes);
  return bytes;
}

using States = std::map<std::string, std::vector<std::byte>>;

/// All states of a checkpoint, as "name state".
States all_states(const std::filesystem::path& folder) {
  const CheckpointReader reader(folder);
  States found;
  for (const CheckpointManifest::Tensor& tensor : reader.manifest().tensors()) {
    found[tensor.name() + " " + tensor.state()] = state_bytes(reader, tensor);
  }
  return found;
}

// w begins at 1; Adam with rate 0.1 and a gradient of 1 moves it by 0.1 a step, to 0.5 after five.
// Then the gradient is -1. With its moments and its count w becomes 0.442684; without the count it
// would be 0.390224, without either 0.6.
TEST(SavedChain, MomentsAndTheirCountAreSaved) {
  const ChainTask task{
      .build = testing::one_weight_chain,
      .fill = [](Chain&, const UnitSource& source) { source(0).values.fill_(1); },
      .batch =
          [](int64_t step, int) {
            MicroBatch batch = testing::token_losses({1});
            batch.inputs.fill_(step < 5 ? 1 : -1);
            return batch;
          },
      .micro_batches = 2,
      .optimizer = std::make_shared<AdamW>(0.9, 0.999, 1e-8),
      .learning_rate = 0.1};
  for (int zero = 0; zero <= 3; ++zero) {
    for (const Layout& after : {Layout{2, zero}, Layout{1, 0}, Layout{2, 3 - zero}}) {
      const TestFolder folder;
      const ChainEnd five = train_and_save(task, {2, zero}, 5, folder / "run");
      EXPECT_NEAR(five.parameters.at("w0")[0], 0.5, 1e-6);
      const ChainEnd six = train_and_save(task, after, 6, folder / "run", 5);
      ASSERT_EQ(six.records.size(), 1U);
      EXPECT_EQ(six.records[0].step, 6);
      EXPECT_NEAR(six.parameters.at("w0")[0], 0.442684, 1e-6) << zero << after.ranks << after.zero;
    }
  }
}

constexpr int64_t kSizes[] = {1, 3, 5, 24};

/// x (1 + the mean of the weights, each times its number): any number of weights, other gradients.
Tensors times_one_plus_mean(const AutogradCall& call) {
  const at::Tensor& weights = call.parameters[0];
  const at::Tensor numbers = at::arange(1, weights.numel() + 1, at::kFloat);
  return {call.inputs[0] * ((weights * numbers).mean() + 1)};
}

ChainTask small_units() {
  return {
      .build =
          [] {
            Chain chain;
            for (const int64_t size : kSizes) {
              const std::string name = fmt::format("w{}", size);
              testing::add_layer(chain, name, {size}, [&](const ParamRef& weight) {
                return std::make_unique<AutogradBlock>(AutogradSpec{
                    .kind = name, .function = times_one_plus_mean, .parameters = {weight}});
              });
            }
            testing::add_sum_loss(chain);
            return chain;
          },
      .fill =
          [](Chain& chain, const UnitSource& source) {
            for (int unit = 0; unit < 4; ++unit) {
              const UnitValues own = source(unit);
              const int64_t end = own.begin + own.values.numel();
              own.values.copy_(at::arange(own.begin, end, at::kFloat) / 10);
              EXPECT_LE(end, chain.units[static_cast<size_t>(unit)]->numel());
            }
          },
      .batch =
          [](int64_t step, int g) {
            MicroBatch batch = testing::token_losses({1, 1});
            batch.inputs.fill_(std::sin(static_cast<double>(12 * step + g)));
            return batch;
          },
      .micro_batches = 12,
      .optimizer = std::make_shared<AdamW>(0.9, 0.999, 1e-8),
      .learning_rate = 0.01,
      .weight_decay = 0.1};
}

// Weights of 1, 3, 5 and 24 elements on up to four ranks: some ranks own nothing of them. One step
// between each hop; every save holds what one that never stopped would.
TEST(SavedChain, FewerElementsThanRanks) {
  const ChainTask task = small_units();
  const TestFolder folder;
  testing::on_ranks(1, [&](Communicator& world, MemoryContext& memory) {
    ChainRun plain(world, memory, task, {});
    for (int64_t step = 1; step <= 4; ++step) {
      plain.train(step);
      plain.save(folder / "plain");
    }
  });
  const std::vector<std::vector<Layout>> journeys = {
      {{1, 0}, {4, 3}, {2, 2}, {4, 1}},
      {{2, 1}, {4, 2}, {1, 3}, {4, 3}},
      {{4, 3}, {1, 0}, {3, 3}, {2, 0}},
      {{3, 2}, {4, 0}, {3, 1}, {1, 1}}};
  for (size_t journey = 0; journey < journeys.size(); ++journey) {
    const std::filesystem::path output = folder / fmt::format("journey-{}", journey);
    int64_t step = 0;
    for (const Layout& layout : journeys[journey]) {
      SCOPED_TRACE(fmt::format(
          "journey {}, step {}: {} ranks, zero {}", journey, step, layout.ranks, layout.zero));
      train_and_save(task, layout, step + 1, output, step);
      ++step;
      const auto name = std::filesystem::path("plain") / step_folder(step);
      EXPECT_EQ(all_states(output / step_folder(step)), all_states(folder / name.string()));
    }
  }
}

/// Whether a parameter is in the first or the third of the four layers.
bool frozen(const std::string& name) {
  return name.starts_with("model.layers.0.") || name.starts_with("model.layers.2.");
}

MicroBatch random_tokens(unsigned seed) {
  std::mt19937 random(seed);
  MicroBatch batch{
      .inputs = at::full({1, 12}, 0, at::kLong),
      .labels = at::full({1, 12}, 0, at::kLong),
      .rows = at::full({1}, seed % 12, at::kLong),
      .target_count = 12,
      .token_count = 12};
  for (at::Tensor* tensor : {&batch.inputs, &batch.labels}) {
    std::generate_n(tensor->mutable_data_ptr<int64_t>(), 12, [&] { return random() % 67; });
  }
  return batch;
}

/// A decoder of four layers of which two are frozen, and held in a type.
ChainTask half_frozen(at::ScalarType compute, const std::string& held = "fp32") {
  return {
      .build =
          [compute, held] {
            return build_decoder(
                tiny_decoder(),
                {.compute = compute,
                 .trainable = [](const std::string& name) { return !frozen(name); },
                 .frozen = frozen_codec(held, compute)});
          },
      .fill =
          [](Chain& chain, const UnitSource& source) {
            initialise_decoder(chain, tiny_decoder(), 7, source);
          },
      .batch = [](int64_t step,
                  int g) { return random_tokens(static_cast<unsigned>(12 * step + g)); },
      .micro_batches = 12,
      .optimizer = std::make_shared<AdamW>(0.9, 0.999, 1e-8),
      .learning_rate = 1e-2,
      .weight_decay = 0.1,
      .model_config = write_decoder_config(tiny_decoder())};
}

void expect_no_states_of_frozen(
    const std::filesystem::path& checkpoint,
    const std::string& held = "fp32") {
  const CheckpointReader reader(checkpoint);
  int count = 0;
  for (const CheckpointManifest::Tensor& tensor : reader.manifest().tensors()) {
    EXPECT_EQ(tensor.trainable(), !frozen(tensor.name()));
    if (frozen(tensor.name())) {
      const bool codes = (held == "int8" || held == "nf4") && tensor.shape_size() == 1 &&
          tensor.name().find("norm") == std::string::npos;
      EXPECT_EQ(tensor.state(), codes ? held : kParameterState) << tensor.name();
      ++count;
    }
  }
  EXPECT_EQ(count, 2 * 9); // a layer's two norms and seven matrices
}

/// Every parameter of an exported folder whole, frozen ones as they were in the beginning.
void expect_exported(
    const std::filesystem::path& folder,
    const std::map<std::string, std::vector<float>>& before,
    const std::map<std::string, std::vector<float>>& after) {
  const auto written = testing::floats(folder / "model.safetensors");
  EXPECT_EQ(written.size(), decoder_tensors(tiny_decoder()).size());
  for (const TensorDeclaration& tensor : decoder_tensors(tiny_decoder())) {
    const std::vector<float>& values = written.at(tensor.name);
    EXPECT_EQ(values, after.at(tensor.name)) << tensor.name;
    EXPECT_EQ(values == before.at(tensor.name), frozen(tensor.name)) << tensor.name;
  }
}

// Saved at step 2 on two ranks with sharded parameters, gone on with on one, two and three ranks:
// the same bits as one process, and frozen weights as they came.
TEST(SavedChain, FrozenPartsAreSavedWholeAndStayAsTheyWere) {
  for (const auto& [compute, held] : std::vector<std::pair<at::ScalarType, std::string>>{
           {at::kFloat, "fp32"},
           {at::kBFloat16, "bf16"},
           {at::kFloat, "int8"},
           {at::kBFloat16, "nf4"}}) {
    const ChainTask task = half_frozen(compute, held);
    const ChainEnd before = testing::train_chain(1, task, {}, 0);
    const ChainEnd plain = testing::train_chain(1, task, {}, 4);
    const TestFolder folder;
    train_and_save(task, {2, 3}, 2, folder / "run");
    expect_no_states_of_frozen(folder / ("run/" + step_folder(2)), held);
    for (const Layout& after : {Layout{1, 0}, Layout{2, 3}, Layout{3, 3}, Layout{2, 2}}) {
      SCOPED_TRACE(fmt::format(
          "{}, {} frozen, to {} ranks, zero {}",
          c10::toString(compute),
          held,
          after.ranks,
          after.zero));
      const ChainEnd rest = train_and_save(task, after, 4, folder / "run", 2);
      EXPECT_EQ(rest.parameters, plain.parameters);
      expect_no_states_of_frozen(folder / ("run/" + step_folder(4)), held);
      if (compute == at::kFloat) {
        std::filesystem::remove_all(folder / "exported");
        export_checkpoint(folder / ("run/" + step_folder(4)), folder / "exported");
        expect_exported(folder / "exported", before.parameters, plain.parameters);
      }
      for (const auto& [name, values] : rest.parameters) {
        EXPECT_EQ(values == before.parameters.at(name), frozen(name)) << name;
      }
    }
  }
}

// Whole or in shards, a frozen unit takes its parameters' bytes and nothing for gradients or the
// optimizer.
TEST(SavedChain, FrozenPartsCostTheirParametersOnly) {
  const ChainTask task = half_frozen(at::kFloat);
  for (int zero = 0; zero <= 3; ++zero) {
    testing::on_ranks(2, [&](Communicator& world, MemoryContext& memory) {
      ChainRun run(world, memory, task, {.zero = zero});
      for (size_t number = 0; number < run.chain().units.size(); ++number) {
        const ParamUnit& unit = *run.chain().units[number];
        const ParamShard& shard = run.store().shard(static_cast<int>(number));
        EXPECT_EQ(shard.moments.size(), unit.trainable() ? 2U : 0U) << unit.name();
        const bool cut = zero == 3 || (zero > 0 && unit.trainable());
        EXPECT_EQ(run.store().layout(static_cast<int>(number)).ranks, cut ? 2 : 1) << unit.name();
      }
    });
  }
}

} // namespace
} // namespace palimpsest
