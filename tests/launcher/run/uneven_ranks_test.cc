// Ranks that do different things in one step: other branches, other lengths, other numbers of
// targets.

#include <palimpsest/core/models/autograd_block.h>
#include <palimpsest/core/optim/adamw.h>
#include <palimpsest/tests/core/data/tensors.h>
#include <palimpsest/tests/launcher/run/chain_run.h>
#include <palimpsest/tests/launcher/run/chains.h>

#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/t.h>

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace palimpsest {
namespace {

using testing::ChainEnd;
using testing::ChainLayout;
using testing::ChainTask;
using ::testing::ElementsAre;
using testing::Finished;
using testing::TestFolder;
using testing::tiny_decoder;

/// y = x w^T on micro-batches whose first label names the branch. Others pass, and then nobody
/// touches the weight or its gradient.
class BranchBlock final : public Block {
 public:
  BranchBlock(ParamRef weight, int branch) : weight_(weight), branch_(branch) {}

  class BranchTape final : public Tape {
   public:
    explicit BranchTape(const BranchBlock& block) : block_(block) {}
    Tensors backward(
        TensorSpan inputs,
        TensorSpan grad_outputs,
        BackwardPart part,
        const BlockContext& context) override {
      if (part != BackwardPart::kWeight) {
        input_ = inputs[0];
        grad_ = grad_outputs[0].clone();
      }
      const bool taken = block_.taken(context);
      if (taken && part != BackwardPart::kInput) {
        block_.weight_.grad().add_(grad_.t().mm(input_));
      }
      if (part == BackwardPart::kWeight) {
        return {};
      }
      return {taken ? grad_.mm(block_.weight_.view()) : grad_.clone()};
    }
    std::vector<at::Tensor*> tensors() override {
      return {&input_, &grad_};
    }

   private:
    const BranchBlock& block_;
    at::Tensor input_;
    at::Tensor grad_;
  };

  ForwardResult forward(
      TensorSpan inputs,
      const ForwardRequest& request,
      const BlockContext& context) override {
    ForwardResult result;
    if (!request.yields.empty()) {
      result.values.push_back(
          taken(context) ? at::linear(inputs[0], weight_.view()) : inputs[0].clone());
    }
    if (request.tape != TapeMode::kNone) {
      result.tape = std::make_unique<BranchTape>(*this);
    }
    return result;
  }
  double forward_flops(TensorSpan inputs) const override {
    return static_cast<double>(inputs[0].numel());
  }
  std::string kind() const override {
    return fmt::format("branch {}", branch_);
  }

 private:
  bool taken(const BlockContext& context) const {
    return *context.batch->labels.const_data_ptr<int64_t>() == branch_;
  }
  ParamRef weight_;
  int branch_;
};

/// The same by autograd, which adds zeros to the gradient of a weight that is not used.
std::unique_ptr<Block> autograd_branch(const ParamRef& weight, int branch) {
  const auto function = [branch](const AutogradCall& call) -> Tensors {
    const bool taken = *call.context.batch->labels.const_data_ptr<int64_t>() == branch;
    return {taken ? at::linear(call.inputs[0], call.parameters[0]) : call.inputs[0] * 1};
  };
  return std::make_unique<AutogradBlock>(AutogradSpec{
      .kind = fmt::format("branch {}", branch), .function = function, .parameters = {weight}});
}

/// Two blocks after each other. A micro-batch whose first label is 0 goes through the first one's
/// weight and past the second's, with 1 the other way round, with 2 past both.
Chain branches(int64_t width, bool by_autograd = false) {
  Chain chain;
  for (const int branch : {0, 1}) {
    const std::string name = fmt::format("branch.{}", branch);
    const auto block = [&](const ParamRef& weight) -> std::unique_ptr<Block> {
      if (by_autograd) {
        return autograd_branch(weight, branch);
      }
      return std::make_unique<BranchBlock>(weight, branch);
    };
    testing::add_layer(chain, name, {width, width}, block);
  }
  testing::add_sum_loss(chain);
  return chain;
}

/// One row of `width` numbers, each a target whose loss is what comes out.
MicroBatch row_through(int branch, int64_t width, float value) {
  return {
      .inputs = at::full({1, width}, value, at::kFloat),
      .labels = at::full({1, width}, branch, at::kLong),
      .rows = at::full({1}, 0, at::kLong),
      .target_count = width,
      .token_count = width};
}

// One weight in each branch, 1 at first; a step's gradient of a branch is the sum of what goes
// through it, over both ranks' targets. Rank 0 takes the first branch and rank 1 the second, then
// the other way round; in step 3 both take the first, in step 4 nobody takes any.
TEST(UnevenRanks, ABranchOfOneRankTrainsOnAll) {
  constexpr int kBranch[4][2] = {{0, 1}, {1, 0}, {0, 0}, {2, 2}};
  constexpr float kValue[4][2] = {{6, 4}, {2, 8}, {2, 2}, {1, 1}};
  const ChainTask task{
      .build = [] { return branches(1); },
      .fill =
          [](Chain&, const UnitSource& source) {
            source(0).values.fill_(1);
            source(1).values.fill_(1);
          },
      .batch = [&](int64_t step,
                   int g) { return row_through(kBranch[step][g], 1, kValue[step][g]); },
      .micro_batches = 2,
      .learning_rate = 0.125};
  for (int zero = 0; zero <= 3; ++zero) {
    for (const bool reproducible : {true, false}) {
      for (const char* policy : {"none", "full"}) {
        const ChainLayout layout{zero, reproducible, policy};
        SCOPED_TRACE(to_text(2, layout));
        const auto weights = [&](int64_t steps) {
          const ChainEnd end = testing::train_chain(2, task, layout, steps);
          return std::vector<float>{
              end.parameters.at("branch.0")[0], end.parameters.at("branch.1")[0]};
        };
        EXPECT_THAT(weights(1), ElementsAre(1 - 3 * 0.125, 1 - 2 * 0.125));
        EXPECT_THAT(weights(2), ElementsAre(0.625 - 4 * 0.125, 0.75 - 1 * 0.125));
        EXPECT_THAT(weights(3), ElementsAre(0.125 - 2 * 0.125, 0.625));
        const ChainEnd end = testing::train_chain(2, task, layout, 4);
        EXPECT_THAT(end.parameters.at("branch.0"), ElementsAre(-0.125));
        EXPECT_THAT(end.parameters.at("branch.1"), ElementsAre(0.625));
        EXPECT_DOUBLE_EQ(end.records[0].grad_norm, std::sqrt(9.0 + 4));
        EXPECT_DOUBLE_EQ(end.records[1].grad_norm, std::sqrt(16.0 + 1));
        EXPECT_DOUBLE_EQ(end.records[2].grad_norm, 2);
        EXPECT_DOUBLE_EQ(end.records[3].grad_norm, 0);
        EXPECT_FALSE(end.records[3].skipped); // a gradient of zero is a gradient
      }
    }
  }
}

// Branches of several shards and an optimizer with a memory: the same bits as one process.
TEST(UnevenRanks, BranchesTrainAsInOneProcess) {
  constexpr int64_t kWidth = 150;
  const ChainTask task{
      .build = [] { return branches(kWidth); },
      .fill =
          [](Chain& chain, const UnitSource& source) {
            initialise(chain, source, 7, [](const Parameter&) { return Initial{.std = 0.1}; });
          },
      .batch =
          [](int64_t step, int g) {
            const int choice = g == 5 ? 1 : g == 2 && step == 1 ? 2 : 0; // only one takes branch 1
            return row_through(choice, kWidth, static_cast<float>(std::sin(7 * step + g)));
          },
      .micro_batches = 12,
      .optimizer = std::make_shared<AdamW>(0.9, 0.999, 1e-8),
      .learning_rate = 1e-2,
      .weight_decay = 0.1};
  const ChainEnd plain = testing::train_chain(1, task, {}, 3);
  ChainTask by_autograd = task;
  by_autograd.build = [] { return branches(kWidth, true); };
  const ChainEnd other = testing::train_chain(2, by_autograd, {.zero = 3}, 3);
  for (size_t step = 0; step < 3; ++step) {
    const double norm = plain.records[step].grad_norm;
    EXPECT_NEAR(other.records[step].grad_norm, norm, 1e-5 * norm);
  }
  for (const int ranks : {2, 3, 4}) {
    for (int zero = 0; zero <= 3; ++zero) {
      const ChainLayout layout{.zero = zero, .policy = zero % 2 == 0 ? "none" : "full"};
      SCOPED_TRACE(to_text(ranks, layout));
      const ChainEnd found = testing::train_chain(ranks, task, layout, 3);
      EXPECT_EQ(found.parameters, plain.parameters);
      for (size_t step = 0; step < 3; ++step) {
        EXPECT_EQ(found.records[step].grad_norm, plain.records[step].grad_norm);
      }
    }
  }
}

// One weight; each rank's micro-batches have gradients 1, 2, 3 and 4 a target: the mean is 2.5 and
// so is the norm, whatever the stage, where a last micro-batch alone would give 4.
TEST(UnevenRanks, EveryMicroBatchCountsOnceInTheMean) {
  const ChainTask task{
      .build = testing::one_weight_chain,
      .fill = [](Chain&, const UnitSource& source) { source(0).values.fill_(1); },
      .batch = [](int64_t,
                  int g) { return testing::token_losses({1.0F + static_cast<float>(g / 2)}); },
      .micro_batches = 8,
      .learning_rate = 0.125};
  for (int zero = 0; zero <= 3; ++zero) {
    for (const bool reproducible : {true, false}) {
      for (const char* policy : {"none", "full"}) {
        const ChainLayout layout{zero, reproducible, policy};
        SCOPED_TRACE(to_text(2, layout));
        const ChainEnd end = testing::train_chain(2, task, layout, 1);
        EXPECT_DOUBLE_EQ(end.records[0].grad_norm, 2.5);
        EXPECT_DOUBLE_EQ(end.records[0].loss, 2.5);
        EXPECT_THAT(end.parameters.at("w0"), ElementsAre(1 - 2.5 * 0.125));
      }
    }
  }
}

/// A row of `length` token ids that predict each other.
MicroBatch tokens(int64_t length, int64_t row, unsigned seed) {
  std::mt19937 random(seed);
  MicroBatch batch{
      .inputs = at::full({1, length}, 0, at::kLong),
      .labels = at::full({1, length}, kIgnoredLabel, at::kLong),
      .rows = at::full({1}, row, at::kLong),
      .target_count = length - 1,
      .token_count = length};
  int64_t* ids = batch.inputs.mutable_data_ptr<int64_t>();
  std::generate_n(ids, length, [&] { return static_cast<int64_t>(random() % 67); });
  std::copy_n(ids + 1, length - 1, batch.labels.mutable_data_ptr<int64_t>());
  return batch;
}

// Micro-batches of 16 and of 4 tokens, on other ranks in each step.
TEST(UnevenRanks, LengthsMayDifferBetweenRanksAndMicroBatches) {
  ChainTask task{
      .build = [] { return build_decoder(tiny_decoder(), {.residual_dropout = 0.1}); },
      .fill =
          [](Chain& chain, const UnitSource& source) {
            initialise_decoder(chain, tiny_decoder(), 7, source);
          },
      .batch =
          [](int64_t step, int g) {
            return tokens((step + g) % 2 == 0 ? 16 : 4, g, static_cast<unsigned>(20 * step + g));
          },
      .micro_batches = 2,
      .optimizer = std::make_shared<AdamW>(0.9, 0.999, 1e-8),
      .learning_rate = 1e-2};
  for (const int micro_batches : {2, 12}) {
    task.micro_batches = micro_batches;
    const ChainEnd plain = testing::train_chain(1, task, {}, 3);
    for (const int ranks : {2, 3}) {
      for (int zero = 0; micro_batches % ranks == 0 && zero <= 3; ++zero) {
        for (const char* policy : {"none", "full"}) {
          const ChainLayout layout{.zero = zero, .policy = policy};
          SCOPED_TRACE(to_text(ranks, layout));
          const ChainEnd found = testing::train_chain(ranks, task, layout, 3);
          EXPECT_EQ(found.parameters, plain.parameters);
          for (size_t step = 0; step < 3; ++step) {
            EXPECT_EQ(found.records[step].loss, plain.records[step].loss);
            EXPECT_EQ(found.records[step].tokens, micro_batches / 2 * (16 + 4));
          }
        }
      }
    }
  }
  // The mean over 15 + 3 targets, from each micro-batch's own mean.
  task.micro_batches = 2;
  const double both = testing::train_chain(2, task, {}, 1).records[0].loss;
  ChainTask one = task;
  one.micro_batches = 1;
  const double longer = testing::train_chain(1, one, {}, 1).records[0].loss;
  one.batch = [](int64_t, int) { return tokens(4, 1, 1); };
  const double shorter = testing::train_chain(1, one, {}, 1).records[0].loss;
  EXPECT_NEAR(both, (15 * longer + 3 * shorter) / 18, 1e-6);
  EXPECT_GT(std::abs(longer - shorter), 1e-3); // so another weighting would be seen
}

/// Six rows of 16 token ids; row r has targets(r) labels.
constexpr int64_t kTargets[] = {15, 3, 1, 9, 0, 6};

std::string masked_yaml(const TestFolder& folder) {
  std::vector<int32_t> ids;
  std::vector<int32_t> labels;
  for (int row = 0; row < 6; ++row) {
    for (int token = 0; token < 16; ++token) {
      ids.push_back((row * 31 + token * token + 3 * token) % 67);
      // the first label is nobody's target
      const bool target = token > 0 && token <= kTargets[row];
      labels.push_back(target ? ids.back() : static_cast<int32_t>(kIgnoredLabel));
    }
  }
  const std::vector<int64_t> shape = {6, 16};
  std::ofstream(folder / "ids.safetensors", std::ios::binary) << safetensors_text(
      {test_tensor("input_ids", "I32", shape, ids), test_tensor("labels", "I32", shape, labels)});
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 67}}
data: {{files: [{}], shuffle: false}}
training: {{steps: 2, micro_batch_size: 1, threads: 1}}
optimizer: {{learning_rate: 1e-2}}
)",
      folder / "ids.safetensors");
}

// Ranks with 15 and 3 targets, with 1 and 9, with none and 6: the mean is over the targets of all.
TEST(UnevenRanks, TheDenominatorIsTheTargetsOfAllRanks) {
  const TestFolder folder;
  const std::string config = masked_yaml(folder);
  const std::string batch = "training.global_batch_size=";
  const Finished alone = testing::train(
      config, folder, {batch + "1", "training.steps=6", "optimizer.learning_rate=0"});
  double weighted = 0; // each row's own mean, before any training
  int64_t targets = 0;
  for (size_t row = 0; row < 6; ++row) {
    EXPECT_EQ(alone.records.all[row].skipped, kTargets[row] == 0);
    weighted += static_cast<double>(kTargets[row]) * alone.records.losses()[row];
    targets += kTargets[row];
  }
  for (const char* reproducible : {"true", "false"}) {
    const std::string mode = std::string("training.reproducible=") + reproducible;
    const Finished plain = testing::train(config, folder, {batch + "6", mode});
    EXPECT_NEAR(plain.records.losses()[0], weighted / static_cast<double>(targets), 1e-6);
    for (const int ranks : {2, 3}) {
      for (int zero = 0; zero <= 3; ++zero) {
        const Finished found = testing::train_on(
            ranks, config, folder, {batch + "6", mode, fmt::format("parallel.zero={}", zero)});
        SCOPED_TRACE(fmt::format("{} ranks, zero {}, reproducible {}", ranks, zero, reproducible));
        EXPECT_NEAR(found.records.losses()[0], weighted / static_cast<double>(targets), 1e-6);
        for (size_t step = 0; step < 2; ++step) {
          const double norm = plain.records.norms()[step];
          EXPECT_NEAR(found.records.norms()[step], norm, 1e-4 * norm);
          EXPECT_EQ(found.records.all[step].tokens, 6 * 16);
        }
        if (std::string(reproducible) == "true") {
          EXPECT_EQ(found.gradients, plain.gradients);
          EXPECT_EQ(found.parameters, plain.parameters);
        }
      }
    }
  }
}

} // namespace
} // namespace palimpsest
