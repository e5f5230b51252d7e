// Covers: launcher/compose/evaluation.cc
// Evaluations while a run trains: what they measure, that they disturb nothing, what they decide.

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/open_data.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/launcher/compose/evaluation.h>
#include <palimpsest/launcher/compose/settings.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <ATen/ops/empty.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <cstdlib>
#include <mutex>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using testing::Finished;
using ::testing::HasSubstr;
using testing::TestFolder;
using ::testing::ThrowsMessage;

/// 21 samples of which 4 are held out, dropout, steps of 6 samples in micro-batches of at most 2.
std::string yaml(const TestFolder& folder, const std::string& validation = "{fraction: 0.2}") {
  testing::write_letters(folder / "text.txt", 21 * 13, 7);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256, dropout: 0.1}}
data: {{files: [{}], format: text, sequence_length: 12, validation: {}}}
training: {{steps: 6, global_batch_size: 6, micro_batch_size: 2, threads: 1}}
optimizer: {{learning_rate: 1e-2, weight_decay: 0.1, max_grad_norm: 1}}
)",
      folder / "text.txt",
      validation);
}

class Evaluated final : public Observer {
 public:
  void step_end(const StepRecord& record) override {
    order.push_back(fmt::format("step {}", record.step));
  }
  void evaluation_end(const EvaluationRecord& record) override {
    order.push_back(fmt::format("evaluation {}", record.step));
    all.push_back(record);
  }
  void note(const std::string& text) override {
    notes.push_back(text);
  }
  std::vector<double> losses() const {
    std::vector<double> found;
    for (const EvaluationRecord& record : all) {
      found.push_back(record.loss);
    }
    return found;
  }
  std::vector<int64_t> steps() const {
    std::vector<int64_t> found;
    for (const EvaluationRecord& record : all) {
      found.push_back(record.step);
    }
    return found;
  }
  std::vector<EvaluationRecord> all;
  std::vector<std::string> order;
  std::vector<std::string> notes;
};

struct Outcome {
  Evaluated evaluated;
  bool finished = false;
  int64_t step = 0;
  bool saved = false;
  EvaluationState state;
};

/// Goes on with what the folder holds.
Outcome run_in(
    const TestFolder& folder,
    const std::string& config,
    const std::vector<std::string>& overrides) {
  Outcome outcome;
  palimpsest::Run run(testing::run_config(config, folder, overrides));
  run.prepare();
  outcome.finished = run.train({&outcome.evaluated});
  outcome.step = run.position().step;
  outcome.saved = run.saved();
  outcome.state = run.evaluated();
  run.write_model();
  return outcome;
}

/// What all ranks see of an evaluation after the last of two steps: the same, or it is none.
EvaluationRecord evaluate_on(
    int count,
    const std::string& config,
    const TestFolder& folder,
    std::vector<std::string> overrides) {
  overrides.emplace_back("training.steps=2");
  std::filesystem::remove_all(folder / "run");
  std::mutex mutex;
  std::vector<EvaluationRecord> found;
  testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = count, .threads = 1});
    palimpsest::Run run(testing::run_config(config, folder, overrides), ranks);
    run.prepare();
    Evaluated evaluated;
    run.train({&evaluated});
    const std::lock_guard lock(mutex);
    found.push_back(evaluated.all.at(0));
  });
  for (const EvaluationRecord& record : found) {
    EXPECT_EQ(record.loss, found.front().loss);
    EXPECT_EQ(record.targets, found.front().targets);
  }
  return found.front();
}

/// Mean loss of the model's logits on the held-out samples, in double, sample by sample.
double loss_by_hand(Run& run) {
  OpenedData data = open_data(data_settings(run.config(), run.model()));
  const SampleSource& samples = *data.validation;
  double sum = 0;
  int64_t targets = 0;
  at::Tensor ids = at::empty({1, samples.input_size()}, at::kLong);
  std::vector<int64_t> labels(static_cast<size_t>(samples.label_size()));
  for (int64_t sample = 0; sample < samples.size(); ++sample) {
    samples.read(sample, ids.mutable_data_ptr(), labels.data());
    const at::Tensor logits = run.model().logits(ids).to(at::kDouble).contiguous();
    const int64_t words = logits.size(2);
    for (size_t place = 0; place < labels.size(); ++place) {
      if (labels[place] == kIgnoredLabel) {
        continue;
      }
      const double* row = logits.const_data_ptr<double>() + static_cast<int64_t>(place) * words;
      double all = 0;
      for (int64_t word = 0; word < words; ++word) {
        all += std::exp(row[word]);
      }
      sum += std::log(all) - row[labels[place]];
      ++targets;
    }
  }
  return sum / static_cast<double>(targets);
}

TEST(Evaluations, MeasureWhatTheModelsLogitsSay) {
  const TestFolder folder;
  palimpsest::Run run(testing::run_config(yaml(folder), folder, {"training.steps=3"}));
  run.prepare();
  Evaluated evaluated;
  ASSERT_TRUE(run.train({&evaluated}));
  ASSERT_EQ(evaluated.steps(), std::vector<int64_t>{3}); // at the end without evaluation.every
  const EvaluationRecord& record = evaluated.all.front();
  EXPECT_EQ(record.samples, 4);
  EXPECT_EQ(record.targets, 4 * 11); // a sample's last token has none
  const double expected = loss_by_hand(run);
  EXPECT_NEAR(record.loss, expected, 1e-5 * expected);
  EXPECT_DOUBLE_EQ(record.perplexity.value(), std::exp(record.loss));
  EXPECT_FALSE(std::filesystem::exists(run.best_model()));
}

// Losses, norms and parameters of a run that evaluates after every step are those of one that does
// not before its end, bit for bit.
TEST(Evaluations, DisturbNothing) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  struct Case {
    int ranks;
    int zero;
    std::vector<std::string> more;
  };
  std::vector<Case> cases = {
      {1, 0, {}},
      {2, 0, {}},
      {2, 1, {"precision.compute=bf16"}},
      {2, 2, {"activation_checkpointing=full"}},
      {3, 3, {}},
      {1, 0, {"memory.device_budget=4MiB", "activation_checkpointing=auto"}},
  };
  if (std::getenv("PALIMPSEST_FULL") != nullptr) {
    for (int code = 0; code < 32; ++code) {
      cases.push_back(
          {1 + code % 4,
           code / 4 % 4,
           {code < 16 ? "precision.compute=fp32" : "precision.compute=bf16"}});
    }
  }
  for (const Case& each : cases) {
    SCOPED_TRACE(fmt::format("{} ranks, zero {}", each.ranks, each.zero));
    std::vector<std::string> overrides = each.more;
    overrides.insert(
        overrides.end(),
        {fmt::format("parallel.zero={}", each.zero),
         "training.global_batch_size=12",
         "training.micro_batch_size=1"});
    const Finished without = testing::train_on(each.ranks, config, folder, overrides);
    overrides.insert(overrides.end(), {"evaluation.every=1", "checkpoint.save_every=2"});
    const Finished with = testing::train_on(each.ranks, config, folder, overrides);
    ASSERT_EQ(without.records.all.size(), 6U);
    EXPECT_EQ(with.records.losses(), without.records.losses());
    EXPECT_EQ(with.records.norms(), without.records.norms());
    EXPECT_EQ(with.parameters, without.parameters);
  }
}

// 4 held-out samples: more than some micro-batches, fewer than others, and than some worlds.
TEST(Evaluations, DependOnNeitherRanksNorMicroBatchesNorSharding) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> alike = {
      "training.reproducible=true", "training.micro_batch_size=1", "model.dropout=0"};
  const EvaluationRecord one = evaluate_on(1, config, folder, alike);
  for (const auto& [ranks, zero] : {std::pair(2, 3), {3, 2}, {6, 0}, {6, 3}}) {
    SCOPED_TRACE(fmt::format("{} ranks, zero {}", ranks, zero));
    std::vector<std::string> overrides = alike;
    overrides.push_back(fmt::format("parallel.zero={}", zero));
    const EvaluationRecord many = evaluate_on(ranks, config, folder, overrides);
    EXPECT_EQ(many.loss, one.loss); // the same micro-batches, the same bits
    EXPECT_EQ(many.targets, one.targets);
  }
  for (const char* micro : {"2", "3", "6"}) {
    const EvaluationRecord other = evaluate_on(
        1, config, folder, {"model.dropout=0", std::string("training.micro_batch_size=") + micro});
    EXPECT_NEAR(other.loss, one.loss, 1e-5 * one.loss);
    EXPECT_EQ(other.targets, one.targets);
  }
}

TEST(Evaluations, OneSampleIsEnoughForManyRanks) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const EvaluationRecord one =
      evaluate_on(1, config, folder, {"evaluation.samples=1", "model.dropout=0"});
  EXPECT_EQ(one.samples, 1);
  EXPECT_EQ(one.targets, 11);
  const EvaluationRecord three = evaluate_on(
      3, config, folder, {"evaluation.samples=1", "model.dropout=0", "parallel.zero=3"});
  EXPECT_NEAR(three.loss, one.loss, 1e-5 * one.loss);
  EXPECT_EQ(three.targets, 11);
}

TEST(Evaluations, TakeFilesOfTheirOwn) {
  const TestFolder folder;
  testing::write_letters(folder / "held-out.txt", 5 * 13, 8);
  const std::string config = yaml(folder, fmt::format("{{files: [{}]}}", folder / "held-out.txt"));
  const Outcome outcome = run_in(folder, config, {"evaluation.every=4"});
  EXPECT_EQ(outcome.evaluated.steps(), (std::vector<int64_t>{4, 6}));
  EXPECT_EQ(outcome.evaluated.all.back().samples, 5);
  EXPECT_THAT(
      outcome.evaluated.order,
      ::testing::ElementsAre(
          "step 1",
          "step 2",
          "step 3",
          "step 4",
          "evaluation 4",
          "step 5",
          "step 6",
          "evaluation 6"));
}

// A rate that overshoots: the lowest loss is not the last. What is kept is what a run that ends
// there writes.
TEST(Evaluations, KeepTheModelOfTheLowestLoss) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> wild = {"optimizer.learning_rate=1", "evaluation.every=1"};
  const Outcome outcome = run_in(folder, config, wild);
  const std::vector<double> losses = outcome.evaluated.losses();
  const auto lowest = std::ranges::min_element(losses);
  const int64_t step = lowest - losses.begin() + 1;
  ASSERT_LT(step, 6) << "the last one is the lowest: this shows nothing";
  EXPECT_EQ(outcome.state.best_step, step);
  EXPECT_EQ(outcome.state.best_loss, *lowest);
  const auto best = testing::floats(folder / "run/best/model.safetensors");
  EXPECT_NE(best, testing::floats(folder / "run/model/model.safetensors"));
  std::filesystem::remove_all(folder / "run");
  std::vector<std::string> shorter = wild;
  shorter.push_back(fmt::format("training.steps={}", step));
  run_in(folder, config, shorter);
  EXPECT_EQ(best, testing::floats(folder / "run/model/model.safetensors"));
  std::filesystem::remove_all(folder / "run");
  shorter.emplace_back("evaluation.keep_best=false");
  run_in(folder, config, shorter);
  EXPECT_FALSE(std::filesystem::exists(folder / "run/best"));
}

// No loss falls by a thousand, so patience is used up as early as can be: the first one counts.
TEST(Evaluations, EndTheRunWherePatienceIsUsedUp) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  std::vector<std::string> overrides = {
      "evaluation.every=1", "evaluation.patience=2", "evaluation.min_improvement=1000"};
  const Outcome first = run_in(folder, config, overrides);
  EXPECT_TRUE(first.finished);
  EXPECT_TRUE(first.saved);
  EXPECT_EQ(first.step, 3);
  ASSERT_EQ(first.evaluated.notes.size(), 1U);
  EXPECT_THAT(
      first.evaluated.notes.front(),
      AllOf(HasSubstr("the run ends early"), HasSubstr("2 evaluations in a row")));
  const Outcome again = run_in(folder, config, overrides);
  EXPECT_TRUE(again.finished);
  EXPECT_EQ(again.step, 3);
  EXPECT_TRUE(again.evaluated.order.empty());
  EXPECT_EQ(again.evaluated.notes, first.evaluated.notes);
  EXPECT_EQ(again.state, first.state);
  overrides[1] = "evaluation.patience=4"; // goes on where it was
  const Outcome longer = run_in(folder, config, overrides);
  EXPECT_EQ(longer.step, 5);
  EXPECT_EQ(longer.state.not_lower, 4);
}

TEST(Evaluations, AllRanksEndTogether) {
  const TestFolder folder;
  const Finished finished = testing::train_on(
      3,
      yaml(folder),
      folder,
      {"parallel.zero=3",
       "evaluation.every=1",
       "evaluation.patience=1",
       "evaluation.min_improvement=1000"});
  EXPECT_EQ(finished.records.all.size(), 2U);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/best/model.safetensors"));
  EXPECT_TRUE(std::filesystem::exists(folder / "run/step-00000002"));
}

/// The records of evaluations in a run's metrics, without their times.
std::vector<nlohmann::json> logged(const TestFolder& folder) {
  std::ifstream file(folder / "run/metrics.jsonl");
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    if (record.contains("eval_loss")) {
      record.erase("eval_time_s");
      found.push_back(record);
    }
  }
  return found;
}

// A run that was killed after step 5 goes on from step 4: what it decides by, and all that it
// writes, is that of the run that never stopped.
TEST(Evaluations, GoOnWhereTheyWere) {
  const TestFolder folder;
  const std::string config = yaml(folder);
  const std::vector<std::string> overrides = {
      "evaluation.every=1",
      "evaluation.patience=9",
      "optimizer.learning_rate=0.1",
      "checkpoint.save_every=2"};
  const Outcome whole = run_in(folder, config, overrides);
  const auto records = logged(folder);
  ASSERT_EQ(records.size(), 6U);
  const auto best = testing::floats(folder / "run/best/model.safetensors");
  std::filesystem::remove_all(folder / "run/step-00000006");
  const Outcome rest = run_in(folder, config, overrides);
  EXPECT_EQ(rest.evaluated.steps(), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(rest.state, whole.state);
  EXPECT_EQ(logged(folder), records);
  EXPECT_EQ(testing::floats(folder / "run/best/model.safetensors"), best);
  for (size_t index = 0; index < records.size(); ++index) {
    EXPECT_EQ(records[index]["step"], index + 1);
    EXPECT_EQ(records[index]["eval_loss"], whole.evaluated.all[index].loss);
    EXPECT_EQ(records[index]["eval_perplexity"], *whole.evaluated.all[index].perplexity);
    EXPECT_EQ(records[index]["eval_targets"], 44);
    EXPECT_EQ(records[index]["best"], whole.evaluated.all[index].best);
  }
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/tensorboard")) {
    EXPECT_THAT(
        read_file(entry.path()), AllOf(HasSubstr("eval/loss"), HasSubstr("eval/perplexity")));
  }
}

TEST(Evaluations, HoldNoMoreThanTheirPlanSays) {
  const TestFolder folder;
  palimpsest::Run run(testing::run_config(yaml(folder), folder, {}));
  run.prepare();
  const PlanBook::Evaluation& planned = run.plans().evaluation();
  for (const Op& op : planned.planned->plan) {
    EXPECT_NE(op.kind, OpKind::kBackward);
    EXPECT_NE(op.kind, OpKind::kUpdate);
    EXPECT_NE(op.kind, OpKind::kReduce);
  }
  const int64_t promised = planned.report.peak(TierId::kDevice);
  EXPECT_LT(promised, run.full_report().peak(TierId::kDevice));

  /// The most that is held between the end of a step and that of its evaluation.
  class Watch final : public Observer {
   public:
    explicit Watch(MemoryContext& memory) : memory_(memory) {}
    void step_end(const StepRecord&) override {
      memory_.reset_peaks();
    }
    void evaluation_end(const EvaluationRecord&) override {
      peak = memory_.total().peak;
    }
    int64_t peak = 0;

   private:
    MemoryContext& memory_;
  };
  Watch watch(run.memory());
  run.train({&watch});
  EXPECT_GT(watch.peak, promised / 2);
  EXPECT_LE(watch.peak, promised + promised / 50);
}

/// Samples of two ids, of which only those from `first` on have a target.
class Given final : public SampleSource {
 public:
  Given(int64_t count, int64_t first) : count_(count), first_(first) {}
  SampleKind kind() const override {
    return SampleKind::kTokens;
  }
  int64_t size() const override {
    return count_;
  }
  int64_t input_size() const override {
    return 2;
  }
  int64_t label_size() const override {
    return 2;
  }
  void read(int64_t sample, void* /*inputs*/, void* labels) const override {
    auto* to = static_cast<int64_t*>(labels);
    to[0] = sample >= first_ ? 1 : kIgnoredLabel;
    to[1] = kIgnoredLabel;
  }

 private:
  int64_t count_;
  int64_t first_;
};

TEST(HeldOutSamples, AreTheFirstOnesAndNeedATarget) {
  const auto held_out = [](int64_t count, int64_t first, std::optional<int64_t> most) {
    return held_out_samples(std::make_unique<Given>(count, first), most);
  };
  EXPECT_EQ(held_out(5, 3, {})->size(), 5);
  EXPECT_EQ(held_out(5, 3, 4)->size(), 4);
  EXPECT_EQ(held_out(5, 0, 9)->size(), 5);
  EXPECT_EQ(held_out_samples(nullptr, 4), nullptr);
  EXPECT_THAT(
      [&] { held_out(5, 3, 3); },
      ThrowsMessage<UserError>(
          AllOf(HasSubstr("data.validation"), HasSubstr("3 held-out samples has a target"))));
}

TEST(EvaluationState, CountsAsLowerFromTheLeastImprovementOnAndKeepsTheLowest) {
  EvaluationState state;
  EXPECT_TRUE(state.add(1, 1, 4.0, 0.5));
  EXPECT_TRUE(state.add(2, 2, 3.75, 0.5)); // the lowest, but too little
  EXPECT_EQ(state.not_lower, 1);
  EXPECT_TRUE(state.add(3, 3, 3.5, 0.5)); // 0.5 below the last that counted
  EXPECT_EQ(state.not_lower, 0);
  EXPECT_FALSE(state.add(4, 4, std::nan(""), 0.5));
  EXPECT_FALSE(state.add(5, 5, 3.5, 0));
  EXPECT_EQ(state.not_lower, 2);
  EXPECT_EQ(state.best_step, 3);
  EXPECT_EQ(state.best_loss, 3.5);
}

// Steps were skipped: the parameters are those of the last evaluation, or of the beginning.
TEST(EvaluationState, CountsNothingWithoutAnUpdate) {
  EvaluationState state;
  EXPECT_TRUE(state.add(1, 0, 4.0, 0)); // the lowest so far all the same
  EXPECT_FALSE(state.add(2, 0, 4.0, 0));
  EXPECT_EQ(state.not_lower, 0);
  EXPECT_FALSE(state.add(3, 1, 4.5, 0)); // the first that counts is lower than none
  EXPECT_EQ(state.not_lower, 0);
  EXPECT_FALSE(state.add(4, 2, 4.5, 0));
  EXPECT_FALSE(state.add(5, 2, 4.5, 0));
  EXPECT_EQ(state.not_lower, 1);
  EXPECT_EQ(state.best_step, 1);
}

TEST(EvaluationState, SurvivesAsNumbersUnlessTheSamplesAreOthers) {
  EvaluationState state{.samples = 7};
  EXPECT_TRUE(state.numbers().empty());
  state.add(1, 1, 0.1 + 0.2, 0);
  state.add(2, 2, 0.4, 0);
  EXPECT_EQ(EvaluationState::from(state.numbers(), 7), state);
  EXPECT_EQ(EvaluationState::from(state.numbers(), 8), EvaluationState{.samples = 8});
  EXPECT_EQ(EvaluationState::from({}, 8), EvaluationState{.samples = 8});
  EvaluationState lost{.samples = 7};
  lost.add(1, 1, std::nan(""), 0);
  EXPECT_EQ(EvaluationState::from(lost.numbers(), 7), lost);
  lost.dropped = true; // is due with other samples too, but not without any
  EXPECT_EQ(EvaluationState::from(lost.numbers(), 7), lost);
  EXPECT_TRUE(EvaluationState::from(lost.numbers(), 8).dropped);
  EXPECT_FALSE(EvaluationState::from(lost.numbers(), 0).dropped);
}

} // namespace
} // namespace palimpsest
