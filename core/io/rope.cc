#include <palimpsest/core/io/rope.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <utility>

namespace palimpsest {
namespace {

constexpr std::array<std::string_view, 5> kTypeNames =
    {"default", "linear", "dynamic", "yarn", "llama3"};

/// base^(-2i / head_dim).
std::vector<double> frequencies(double base, int64_t head_dim) {
  std::vector<double> result(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = std::pow(base, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
  }
  return result;
}

/// The base grows with the sequence, so that the slowest pair keeps within its trained range
/// (NTK-aware scaling).
double dynamic_base(const RopeConfig& rope, int64_t head_dim, int64_t trained, int64_t length) {
  const double stretch =
      rope.factor * static_cast<double>(std::max(length, trained)) / static_cast<double>(trained) -
      (rope.factor - 1.0);
  const auto dim = static_cast<double>(head_dim);
  return rope.theta * std::pow(stretch, dim / (dim - 2.0));
}

/// Fast pairs stay, slow ones are divided by the factor, those between are blended by their number
/// of turns in the original context.
void scale_llama3(const RopeConfig& rope, std::vector<double>& scaled) {
  const auto context = static_cast<double>(*rope.original_max_position_embeddings);
  for (double& frequency : scaled) {
    const double turns = context * frequency / (2.0 * std::numbers::pi);
    const double kept = std::clamp(
        (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor), 0.0, 1.0);
    frequency = (1.0 - kept) * frequency / rope.factor + kept * frequency;
  }
}

/// Pairs between which YaRN blends: those that make beta_fast and beta_slow turns in the original
/// context.
std::pair<double, double> yarn_range(const RopeConfig& rope, int64_t head_dim, double context) {
  const auto dim = static_cast<double>(head_dim);
  const auto pair_with_turns = [&](double turns) {
    return dim * std::log(context / (turns * 2.0 * std::numbers::pi)) /
        (2.0 * std::log(rope.theta));
  };
  double low = pair_with_turns(rope.beta_fast);
  double high = pair_with_turns(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  return {std::max(low, 0.0), std::min(high, dim - 1.0)};
}

void scale_yarn(
    const RopeConfig& rope,
    int64_t head_dim,
    double context,
    std::vector<double>& scaled) {
  auto [low, high] = yarn_range(rope, head_dim, context);
  if (low == high) {
    high += 0.001; // a step instead of a ramp
  }
  for (size_t i = 0; i < scaled.size(); ++i) {
    const double interpolated = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    scaled[i] = scaled[i] / rope.factor * interpolated + scaled[i] * (1.0 - interpolated);
  }
}

double yarn_attention_scaling(const RopeConfig& rope) {
  if (rope.attention_factor) {
    return *rope.attention_factor;
  }
  const auto scale = [&](double mscale) {
    return rope.factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(rope.factor) + 1.0;
  };
  const double mscale = rope.mscale.value_or(0.0);
  const double mscale_all_dim = rope.mscale_all_dim.value_or(0.0);
  // Zero counts as absent, as in transformers.
  return mscale != 0.0 && mscale_all_dim != 0.0 ? scale(mscale) / scale(mscale_all_dim)
                                                : scale(1.0);
}

} // namespace

std::string_view name_of(RopeType type) {
  return kTypeNames[static_cast<size_t>(type)];
}

std::optional<RopeType> parse_rope_type(std::string_view name) {
  const auto found = std::find(kTypeNames.begin(), kTypeNames.end(), name);
  if (found == kTypeNames.end()) {
    return std::nullopt;
  }
  return static_cast<RopeType>(found - kTypeNames.begin());
}

RopeTable rope_table(
    const RopeConfig& rope,
    int64_t head_dim,
    int64_t max_position_embeddings,
    int64_t sequence_length) {
  check(head_dim > 0 && head_dim % 2 == 0, "rotary embedding of head_dim {}", head_dim);
  double base = rope.theta;
  if (rope.type == RopeType::kDynamic) {
    check(head_dim > 2, "dynamic rotary embedding of head_dim {}", head_dim);
    base = dynamic_base(rope, head_dim, max_position_embeddings, sequence_length);
  }
  std::vector<double> scaled = frequencies(base, head_dim);
  RopeTable table;
  switch (rope.type) {
    case RopeType::kDefault:
    case RopeType::kDynamic:
      break;
    case RopeType::kLinear:
      for (double& frequency : scaled) {
        frequency /= rope.factor;
      }
      break;
    case RopeType::kLlama3:
      check(
          rope.original_max_position_embeddings.has_value(),
          "llama3 rotary embedding without original_max_position_embeddings");
      scale_llama3(rope, scaled);
      break;
    case RopeType::kYarn:
      scale_yarn(
          rope,
          head_dim,
          static_cast<double>(
              rope.original_max_position_embeddings.value_or(max_position_embeddings)),
          scaled);
      table.attention_scaling = yarn_attention_scaling(rope);
      break;
  }
  table.inverse_frequencies.assign(scaled.begin(), scaled.end());
  return table;
}

} // namespace palimpsest
