#include <palimpsest/memory/planners/chain_parts.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

CostChain loss_as_stage(const CostChain& chain) {
  CostChain result = chain;
  result.stages.push_back(
      {.name = "loss",
       .tapes =
           {{.backward_workspace = chain.loss_workspace, .backward_seconds = chain.loss_seconds}},
       .gradient_bytes = chain.loss_gradient_bytes});
  return result;
}

LiveGradients::LiveGradients(const CostChain& chain) : from_(chain.stages.size() + 1, 0) {
  int64_t weights = 0;
  for (int stage = chain.size() - 1; stage >= 0; --stage) {
    weights += chain.stages[static_cast<size_t>(stage)].gradient_bytes;
    from_[static_cast<size_t>(stage)] = weights + chain.input_of(stage);
  }
}

int64_t tape_need(
    const CostChain& chain,
    const LiveGradients& gradients,
    int s,
    int t,
    const TapeOption& option) {
  const int64_t unread = s == t && chain.spares_unread ? chain.input_of(s + 1) : 0;
  const int64_t forward = gradients.after(t) + option.forward_workspace - unread;
  const int64_t backward =
      gradients.after(s - 1) + chain.input_of(s + 1) + option.backward_workspace;
  return option.bytes + std::max(forward, backward);
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
