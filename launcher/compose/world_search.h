#pragma once

// The search for a whole job: micro-batch, ZeRO stage, shards and replicas, and what is recomputed,
// in a world that need not be there.
//
//   WorldSearch search(world_request(config, load_hardware("h100-80")));
//   const std::vector<WorldLayout> best = search.best(1024, 10);        // by tokens per second
//   const std::optional<WorldLayout> least = search.smallest(1 << 20);
//
// Propose, compose, simulate, keep the best: each layout is a whole plan, composed and simulated as
// a run's is, at costs in closed form (core/models/decoder_cost.h). Nothing of the model is
// allocated. Left out beforehand are layouts that do not fit whatever runs again, their larger
// micro-batches, and what could not be among the best even if nothing ran again.

#include <palimpsest/core/config/run_config.pb.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/plan/lockstep.h>
#include <palimpsest/launcher/compose/hardware.h>
#include <palimpsest/launcher/compose/search.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

/// What is planned. Optional values that are set are not searched for.
struct WorldRequest {
  std::string description{}; ///< of the model
  DecoderConfig model{};
  DecoderOptions decoder{};
  int64_t tokens = 0; ///< of a sample
  bool packed = false; ///< several documents share a sample
  int moment_count = 2; ///< of the optimizer
  StatePrecision precision{};
  bool reproducible = false;
  Hardware hardware{};
  int64_t budget = 0; ///< bytes that a rank may hold
  std::string policy = "auto"; ///< or a planner of recomputation
  std::optional<int64_t> global_batch{}; ///< samples of a step
  std::optional<int64_t> micro_batch{}; ///< samples
  std::optional<int64_t> accumulation{}; ///< unset, and free by the global batch: 1
  std::optional<int> zero{};
  std::optional<int> shard{};
  std::optional<int> replicate{};
  std::optional<int64_t> prefetch{}; ///< bytes; unset: what three blocks need
};

/// UserError for a model that is no decoder, and where the config fixes what is recomputed. Data
/// files need not be there.
WorldRequest world_request(const RunConfig& config, const Hardware& hardware);

struct WorldLayout {
  int zero = 0;
  Mesh mesh{};
  int64_t micro_batch = 0; ///< samples
  int64_t accumulation = 0; ///< micro-batches of a rank's step
  StepChoice choice{}; ///< what runs again, and the step's peak and seconds
  RankReport rank{}; ///< of the simulated micro-batches
  double tokens_per_second = 0; ///< of all ranks
  /// FLOPs of all forwards and backwards, reruns aside, over what all ranks do at their peak.
  double mfu = 0;
  Lane bound = Lane::kCompute; ///< the busiest lane
  double bound_share = 0; ///< of the simulated step's seconds

  int64_t global_batch() const {
    return micro_batch * accumulation * mesh.data();
  }
};

/// A step of more micro-batches is extended from one of so many: each further one takes as long as
/// the last of these, and no more bytes.
inline constexpr int64_t kSimulatedMicroBatches = 3;

class WorldSearch {
 public:
  explicit WorldSearch(WorldRequest request) : request_(std::move(request)) {}

  /// At most `count`, fastest first; empty where nothing fits. UserError where so many ranks cannot
  /// share the batch, or what is set allows no mesh.
  std::vector<WorldLayout> best(int world, int count);

  /// How the layouts of the last best() fared.
  struct Counts {
    int layouts = 0;
    int without_room = 0; ///< whatever ran again
    int too_slow = 0; ///< even if nothing ran again
    int searched = 0;
  };
  const Counts& counts() const {
    return counts_;
  }

  /// In the smallest world, of `limit` ranks at most, where a step of one sample a rank fits with
  /// all states sharded (or as `zero` says) over all ranks. None: not even in the largest.
  std::optional<WorldLayout> smallest(int limit);

  /// The layout that takes the fewest bytes in this world, whatever the budget: best() finds one from
  /// least_budget(its peak) on, and none with a byte less.
  WorldLayout leanest(int world);

  const WorldRequest& request() const {
    return request_;
  }

 private:
  struct Candidate {
    int zero = 0;
    Mesh mesh{};
    int64_t micro_batch = 0;
    int64_t accumulation = 0;
    double fastest = 0; // tokens per second if nothing ran again
  };
  struct Simulated {
    PlanReport report;
    int64_t peak = 0; // with the samples of the whole step
  };

  std::vector<Candidate> candidates(int world) const;
  std::vector<std::pair<int, Mesh>> placements(int world) const;
  std::vector<std::pair<int64_t, int64_t>> batches(int ranks) const;
  Candidate all_sharded(int world) const;
  bool states_fit(const Candidate& candidate);
  int64_t room() const;
  const ModelCost& cost(int64_t micro_batch);
  Job job(const Candidate& candidate, int64_t micro_batches);
  Simulated simulated(const Candidate& candidate, int64_t micro_batches, const Segments& segments);
  StepCost step_cost(const Candidate& candidate, const Segments& segments);
  double tokens_of(const Candidate& candidate) const;
  const Segments& least(int zero, int64_t micro_batch);
  bool can_fit(const Candidate& candidate);
  std::vector<Candidate> with_room(const std::vector<Candidate>& all);
  std::optional<StepChoice> choose(const Candidate& candidate);
  WorldLayout layout(const Candidate& candidate, StepChoice choice);

  WorldRequest request_;
  std::map<int64_t, ModelCost> costs_; // by micro-batch
  std::map<std::pair<int, int64_t>, Segments> least_; // by ZeRO stage and micro-batch
  Counts counts_;
};

} // namespace palimpsest
