// Evaluations that do not come to their end: a request to stop between two of their micro-batches,
// memory that runs out in one.

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/launcher/run/ranks_testing.h>
#include <palimpsest/tests/support/files/letters.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdlib>
#include <limits>
#include <mutex>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::TestFolder;

/// Six samples are held out and evaluated: three micro-batches a rank.
std::string yaml(const TestFolder& folder) {
  testing::write_letters(folder / "text.txt", 24 * 13, 7);
  return fmt::format(
      R"(model: {{family: llama, hidden_size: 24, num_hidden_layers: 2, num_attention_heads: 4,
  num_key_value_heads: 2, intermediate_size: 56, vocab_size: 256}}
data: {{files: [{}], format: text, sequence_length: 12, validation: {{fraction: 0.3}}}}
training: {{steps: 4, global_batch_size: 4, micro_batch_size: 2, threads: 1}}
optimizer: {{learning_rate: 1e-2, max_grad_norm: 1}}
evaluation: {{every: 2, patience: 9, samples: 6}}
checkpoint: {{save_every: 4}}
)",
      folder / "text.txt");
}

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

class Told final : public Observer {
 public:
  void step_end(const StepRecord& record) override {
    steps.push_back(record.loss);
  }
  void evaluation_end(const EvaluationRecord& record) override {
    evaluations.emplace_back(record.step, record.loss);
  }
  void note(const std::string& text) override {
    notes += text + "\n";
  }
  std::vector<double> steps;
  std::vector<std::pair<int64_t, double>> evaluations;
  std::string notes;
};

/// What the rank that leads sees.
struct Ended {
  Told told;
  bool finished = false;
  bool saved = false;
  int64_t step = 0;
  int64_t questions = 0; // how often it was asked whether to stop
  EvaluationState state;
};

/// Goes on with what the folder holds. `watch`: a further observer of each rank, made once the run is
/// there. While it trains the last rank is asked to stop from its question number `stop` on.
using Watch = std::function<std::unique_ptr<Observer>(Run& run)>;
Ended run_in(
    const TestFolder& folder,
    int count,
    const std::vector<std::string>& overrides,
    int64_t stop = kUnlimited,
    const Watch& watch = {}) {
  Ended ended;
  std::mutex mutex;
  std::vector<bool> finished;
  testing::on_ranks(count, [&](Communicator& world, MemoryContext&) {
    bool prepared = false;
    int64_t questions = 0;
    Ranks ranks(world, {.ranks = count, .threads = 1, .stop_requested = [&] {
                          return prepared && questions++ >= stop && world.rank() == count - 1;
                        }});
    Run run(testing::run_config(yaml(folder), folder, overrides), ranks);
    run.prepare();
    prepared = true;
    Told told;
    std::vector<Observer*> observers = {&told};
    const std::unique_ptr<Observer> more = watch ? watch(run) : nullptr;
    if (more != nullptr) {
      observers.push_back(more.get());
    }
    const bool done = run.train(observers);
    const std::lock_guard lock(mutex);
    finished.push_back(done);
    if (ranks.leads()) {
      ended = {told, done, run.saved(), run.position().step, questions, run.evaluated()};
    }
  });
  EXPECT_THAT(finished, ::testing::Each(ended.finished));
  return ended;
}

std::vector<nlohmann::json> logged(const TestFolder& folder) {
  std::ifstream file(folder / "run/metrics.jsonl");
  std::vector<nlohmann::json> found;
  for (std::string line; std::getline(file, line);) {
    nlohmann::json record = nlohmann::json::parse(line);
    for (const char* key :
         {"step_time_s",
          "data_wait_s",
          "tokens_per_s",
          "peak_device_bytes",
          "peak_rss_bytes",
          "eval_time_s"}) {
      record.erase(key);
    }
    found.push_back(record);
  }
  return found;
}

// At every question, be it before a step or before a micro-batch of an evaluation: what was done is
// saved, and the run that goes on ends as if nobody had asked.
TEST(EvaluationStops, ARunThatGoesOnEvaluatesWhatWasDropped) {
  for (const int count : {1, 2}) {
    const TestFolder folder;
    const std::vector<std::string> overrides = {
        fmt::format("parallel.zero={}", count == 1 ? 0 : 3),
        fmt::format("training.micro_batch_size={}", count == 1 ? 2 : 1)};
    const Ended whole = run_in(folder, count, overrides);
    ASSERT_TRUE(whole.finished);
    ASSERT_EQ(whole.questions, 4 + 2 * 3); // steps; micro-batches of two evaluations
    const auto records = logged(folder);
    const auto best = testing::floats(folder / "run/best/model.safetensors");
    for (int64_t stop = 0; stop < whole.questions; ++stop) {
      SCOPED_TRACE(fmt::format("{} ranks, stop at question {}", count, stop));
      std::filesystem::remove_all(folder / "run");
      const Ended stopped = run_in(folder, count, overrides, stop);
      EXPECT_FALSE(stopped.finished);
      EXPECT_EQ(stopped.saved, stop > 0);
      constexpr int64_t kDone[] = {0, 1, 2, 2, 2, 2, 3, 4, 4, 4};
      EXPECT_EQ(stopped.step, kDone[stop]);
      const bool dropped = (stop >= 2 && stop < 5) || stop >= 7;
      EXPECT_EQ(stopped.state.dropped, dropped);
      EXPECT_EQ(
          stopped.told.notes,
          dropped ? fmt::format(
                        "the evaluation after step {} is dropped, since the run was asked to stop; "
                        "it is done when the run goes on\n",
                        stopped.step)
                  : "");
      EXPECT_EQ(stopped.told.evaluations.size(), stop < 5 ? 0U : 1U);
      const Ended rest = run_in(folder, count, overrides);
      EXPECT_TRUE(rest.finished);
      EXPECT_EQ(rest.state, whole.state);
      EXPECT_EQ(logged(folder), records);
      EXPECT_EQ(testing::floats(folder / "run/best/model.safetensors"), best);
      const Ended again = run_in(folder, count, overrides); // nothing is left to do
      EXPECT_TRUE(again.finished && again.told.steps.empty() && again.told.evaluations.empty());
    }
  }
}

/// After each step lets the k-th allocation from then on fail, and says when it did.
class FailInEvaluation final : public Observer {
 public:
  FailInEvaluation(MemoryContext& memory, int64_t k, std::atomic<bool>& failed)
      : memory_(memory), k_(k), failed_(failed) {}
  void step_end(const StepRecord& record) override {
    if (record.step == 2) {
      memory_.set_allocation_hook([this, fail = fail_at_allocation(k_)](int64_t bytes) {
        try {
          fail(bytes);
        } catch (...) {
          failed_ = true;
          throw;
        }
      });
    }
  }
  void evaluation_end(const EvaluationRecord&) override {
    memory_.set_allocation_hook({});
  }

 private:
  MemoryContext& memory_;
  int64_t k_;
  std::atomic<bool>& failed_;
};

// Somebody else has taken the memory for a moment: the same plan serves, with the same bits. Where
// losses are added up, or the best model is written, there is nothing to run again; a collective
// is issued once more without a word.
TEST(EvaluationStops, AnyAllocationOfItMayFailAndItRunsAgain) {
  const bool all = std::getenv("PALIMPSEST_FULL") != nullptr;
  for (const int count : {1, 3}) {
    const TestFolder folder;
    const std::vector<std::string> overrides = {
        "training.global_batch_size=6",
        fmt::format("parallel.zero={}", count),
        fmt::format("training.micro_batch_size={}", 3 - count / 2)};
    const Ended whole = run_in(folder, count, overrides);
    int again = 0;
    int loading = 0;
    for (int64_t k = 1;; k += all ? 1 : 5) {
      SCOPED_TRACE(fmt::format("{} ranks, allocation {}", count, k));
      std::filesystem::remove_all(folder / "run");
      std::atomic<bool> failed = false;
      try {
        const Ended found = run_in(folder, count, overrides, kUnlimited, [&](palimpsest::Run& run) {
          const int64_t mine = run.ranks().rank() == count - 1 ? k : 1'000'000;
          return std::make_unique<FailInEvaluation>(run.memory(), mine, failed);
        });
        EXPECT_EQ(found.told.evaluations, whole.told.evaluations);
        EXPECT_EQ(found.told.steps, whole.told.steps);
        if (!failed) {
          break; // there are not so many
        }
        if (found.told.notes.empty()) {
          EXPECT_GT(count, 1);
          continue;
        }
        const bool in_plan = found.told.notes.find("out of memory in ") != std::string::npos;
        EXPECT_THAT(
            found.told.notes,
            AllOf(
                HasSubstr(
                    in_plan ? "out of memory in " : "out of memory while loading the samples"),
                HasSubstr("; the evaluation runs again\n")));
        ++(in_plan ? again : loading);
      } catch (const Error& error) {
        EXPECT_THAT(
            error.what(),
            AllOf(HasSubstr("out of memory while "), Not(HasSubstr("loading the samples"))));
      }
    }
    EXPECT_GT(loading, 0) << "the first allocation is the samples'";
    EXPECT_GT(again, all ? 40 : 3);
  }
}

/// Bounds what the only evaluation of a rank may hold, and measures what it holds.
class Bound final : public Observer {
 public:
  Bound(MemoryContext& memory, int64_t limit, int64_t& peak)
      : memory_(memory), limit_(limit), peak_(peak) {}
  void step_end(const StepRecord& record) override {
    if (record.step == 4) {
      memory_.reset_peaks();
      memory_.set_limit(limit_);
    }
  }
  void evaluation_end(const EvaluationRecord&) override {
    peak_ = memory_.total().peak;
    memory_.set_limit(kUnlimited);
  }

 private:
  MemoryContext& memory_;
  int64_t limit_;
  int64_t& peak_;
};

/// With a bound on the last rank's evaluation; what that takes in `peak`.
Ended bounded(const TestFolder& folder, int count, int64_t limit, int64_t& peak) {
  std::filesystem::remove_all(folder / "run");
  std::vector<int64_t> peaks(static_cast<size_t>(count));
  Ended ended = run_in(
      folder,
      count,
      {"training.micro_batch_size=4",
       "training.global_batch_size=8",
       "evaluation.every=4",
       fmt::format("parallel.zero={}", count == 1 ? 0 : 3)},
      kUnlimited,
      [&](Run& run) {
        const int rank = run.ranks().rank();
        return std::make_unique<Bound>(
            run.memory(), rank == count - 1 ? limit : kUnlimited, peaks[static_cast<size_t>(rank)]);
      });
  peak = peaks.back();
  return ended;
}

// Twice by the same plan, then by tighter ones, of fewer samples at a time: the same loss. One line
// each.
TEST(EvaluationStops, ATighterPlanServesWhereMemoryStaysShort) {
  for (const int count : {1, 2}) {
    const TestFolder folder;
    int64_t peak = 0;
    const Ended whole = bounded(folder, count, kUnlimited, peak);
    EXPECT_EQ(whole.told.notes, "");
    const int64_t limit = peak - 2000;
    const Ended found = bounded(folder, count, limit, peak);
    EXPECT_TRUE(found.finished);
    EXPECT_LE(peak, limit);
    EXPECT_THAT(
        found.told.notes,
        AllOf(
            HasSubstr("out of memory in "),
            HasSubstr("; the evaluation runs again\n"),
            HasSubstr("; the evaluation runs again by a plan of at most ")));
    ASSERT_EQ(found.told.evaluations.size(), 1U);
    const double loss = whole.told.evaluations[0].second;
    EXPECT_NEAR(found.told.evaluations[0].second, loss, 1e-5 * loss);
    EXPECT_EQ(found.told.steps, whole.told.steps);
  }
}

TEST(EvaluationStops, WhereNoPlanFitsTheMessageIsThatOfAStep) {
  for (const int count : {1, 2}) {
    const TestFolder folder;
    int64_t peak = 0;
    bounded(folder, count, kUnlimited, peak);
    try {
      bounded(folder, count, peak - peak / 4, peak);
      ADD_FAILURE() << "there was memory enough";
    } catch (const Error& error) {
      EXPECT_EQ(error.exit_code(), 1);
      EXPECT_THAT(
          error.what(),
          AllOf(
              HasSubstr("out of memory in "),
              HasSubstr(" held: "),
              HasSubstr("parameters "),
              HasSubstr("would help")));
    }
  }
}

} // namespace
} // namespace palimpsest
