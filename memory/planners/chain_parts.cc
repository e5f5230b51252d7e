#include <palimpsest/memory/planners/chain_parts.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

CostChain loss_as_stage(const CostChain& chain) {
  CostChain result = chain;
  result.stages.push_back(
      {.name = "loss",
       .tapes = {
           {.backward_workspace = chain.loss_workspace, .backward_seconds = chain.loss_seconds}}});
  return result;
}

int64_t tape_need(const CostChain& chain, int s, int t, const TapeOption& option) {
  const int64_t forward = chain.input_of(t + 1) + option.bytes + option.forward_workspace;
  const int64_t backward =
      chain.input_of(s) + chain.input_of(s + 1) + option.bytes + option.backward_workspace;
  return std::max(forward, backward);
}

int64_t forward_need(const CostChain& chain, int s, int stage) {
  const int64_t input = stage == s ? 0 : chain.input_of(stage);
  return input + chain.input_of(stage + 1) +
      chain.stages[static_cast<size_t>(stage)].forward_workspace;
}

void append_part(Segments& segments, Segment part) {
  if (!segments.empty() && part.tape != TapeMode::kNone && segments.back().tape == part.tape) {
    segments.back().blocks.end = part.blocks.end;
    return;
  }
  segments.push_back(std::move(part));
}

} // namespace palimpsest
