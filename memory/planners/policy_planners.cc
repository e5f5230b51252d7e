#include <palimpsest/memory/planners/policy_planners.h>

#include <palimpsest/memory/planners/candidates.h>
#include <palimpsest/memory/recompute/policies.h>

#include <utility>
#include <vector>

namespace palimpsest {
namespace {

/// As policies see it: a block and a layer a stage.
ModelCost model_of(const CostChain& chain) {
  ModelCost model;
  for (int stage = 0; stage < chain.size(); ++stage) {
    const ChainStage& from = chain.stages[static_cast<size_t>(stage)];
    BlockCost block{.name = from.name, .value_bytes = {from.output_bytes}};
    block.forward_seconds = from.forward_seconds;
    block.full_bytes = from.tape_of(TapeMode::kFull).bytes - from.output_bytes;
    block.lean_bytes = from.tape_of(TapeMode::kLean).bytes - from.output_bytes;
    model.blocks.push_back(std::move(block));
    model.layers.push_back({fmt::format("{}", stage), {stage, stage + 1}});
  }
  model.blocks.push_back({.name = "loss"});
  return model;
}

/// The settings of the policy itself.
std::vector<PolicyOptions> settings(std::string_view policy, const CostChain& chain) {
  std::vector<PolicyOptions> all;
  if (policy == "every_n" || policy == "uniform") {
    for (int number = 1; number <= chain.size(); ++number) {
      PolicyOptions options;
      (policy == "every_n" ? options.n : options.segments) = number;
      all.push_back(options);
    }
  } else if (policy == "key_layers") {
    for (int kept = 0; kept <= chain.size(); ++kept) {
      all.push_back({.count = kept});
    }
  } else {
    all.emplace_back();
  }
  return all;
}

ChainPlan decide(const Policy& policy, const CostChain& chain, int64_t budget) {
  const ModelCost model = model_of(chain);
  const bool segmented = policy.name != "none" && policy.name != "key_layers";
  Candidates candidates(chain, budget);
  for (PolicyOptions options : settings(policy.name, chain)) {
    for (const TapeMode tape : {TapeMode::kFull, TapeMode::kLean}) {
      options.kept_tape = options.rerun_tape = tape;
      candidates.consider(policy.decide(model, options));
      if (segmented) {
        for (const bool keep_last : {false, true}) {
          options.keep_last_segment = keep_last;
          candidates.consider(policy.decide(model, options));
        }
        options.keep_last_segment.reset();
      }
    }
  }
  return candidates.fastest(policy.name);
}

} // namespace

Planner policy_planner(std::string_view policy, std::string_view help) {
  return {
      std::string(policy),
      std::string(help),
      [found = find_policy(policy)](const CostChain& chain, int64_t budget) {
        return decide(found, chain, budget);
      }};
}

} // namespace palimpsest
