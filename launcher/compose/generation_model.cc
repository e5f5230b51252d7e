#include <palimpsest/launcher/compose/generation_model.h>

#include <palimpsest/core/base/bytes.h>
#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/engine/memory_shortage.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/models/weights.h>
#include <palimpsest/launcher/compose/saved_values.h>

#include <ATen/ops/zeros.h>

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace palimpsest {

GenerationModel::GenerationModel(GenerationSource source)
    : source_(std::move(source)), memory_("generation") {
  const ScopedContext here(memory_);
  install_cpu_allocator();
  const RunConfig& config = source_.config;
  set_threads(
      config.training().has_threads() ? static_cast<int>(config.training().threads())
                                      : Device::cpu().threads());
  model_.emplace(config, source_.checkpoint);
  if (!model_->reads_tokens()) {
    throw UserError("generate: {} is no language model: it reads features", source_.name);
  }
  generator_.emplace(model_->chain());
  held_before_ = memory_.total().live;
  if (config.memory().has_device_budget()) {
    memory_.set_limit(config.memory().device_budget());
  }
}

void GenerationModel::load() {
  const ScopedContext here(memory_);
  const int64_t available = Device::cpu().available_memory();
  if (weight_bytes() > available) {
    throw EnvironmentError(
        "out of memory: the weights of {} take {}, but {} are available; a narrower "
        "precision.compute takes less",
        source_.name,
        format_bytes(weight_bytes()),
        format_bytes(available));
  }
  name_shortages(memory_, "reading weights", [&] { read_weights(); });
}

GenerationModel::LeastBudget GenerationModel::least_budget(
    const std::vector<Generator::Length>& texts,
    int64_t batch) const {
  std::vector<int64_t> caches;
  for (const Generator::Length& text : texts) {
    caches.push_back(generator_->most_cache_bytes(text));
  }
  std::ranges::sort(caches, std::greater());
  const int64_t together = std::min(batch, std::ssize(texts));
  int64_t kept = std::accumulate(caches.begin(), caches.begin() + together, int64_t{0});
  int64_t scratch = 0;
  MemoryContext rehearsal("rehearsal");
  rehearsal.set_limit(most_for_measuring());
  LeastBudget least;
  least.refused = refusal_in(
      rehearsal, [&] { scratch = generator_->most_scratch_bytes(texts, together, rehearsal); });
  const int64_t filling = most_filling_bytes(model_->chain());
  if (filling > kept + scratch) {
    kept = 0;
    scratch = filling;
  }
  std::vector<std::pair<int64_t, std::string>> parts = {
      {held_before_ + weight_bytes(), "weights"},
      {kept, "keys and values"},
      {scratch, "workspace"}};
  std::ranges::sort(parts, std::greater());
  for (const auto& [bytes, name] : parts) {
    least.bytes += bytes;
    least.parts += bytes == 0
        ? ""
        : fmt::format("{}{} {}", least.parts.empty() ? "" : ", ", name, format_bytes(bytes));
  }
  if (least.refused) {
    least.bytes = std::max(least.bytes, least.refused->live + least.refused->bytes);
  }
  return least;
}

/// Beyond it the budget is too small for certain. A budget that lacks less than the weights take still
/// gets to know the least.
int64_t GenerationModel::most_for_measuring() const {
  const int64_t available = Device::cpu().available_memory();
  if (!source_.config.memory().has_device_budget()) {
    return available;
  }
  const auto budget = static_cast<int64_t>(source_.config.memory().device_budget());
  return std::min(available, std::min(available, budget) + weight_bytes());
}

void GenerationModel::require_budget(const std::vector<Generator::Length>& texts, int64_t batch)
    const {
  if (!source_.config.memory().has_device_budget()) {
    return;
  }
  const int64_t budget = source_.config.memory().device_budget();
  const LeastBudget least = least_budget(texts, batch);
  if (budget >= least.bytes) {
    if (least.refused) {
      throw EnvironmentError(
          "{}", describe(*least.refused, "while measuring what generating takes"));
    }
    return;
  }
  std::string change = "a shorter prompt, fewer --max-new-tokens or a narrower precision.compute";
  if (least.refused) {
    throw UserError(
        "memory.device_budget: {} is not enough to generate, which takes more than {}: {}, and "
        "workspace; give more, or {}",
        format_bytes(budget),
        format_bytes(least.bytes),
        least.parts,
        change);
  }
  if (std::min(batch, std::ssize(texts)) > 1) {
    change = fmt::format(
        "--batch 1, which could do with {}", format_bytes(least_budget(texts, /*batch=*/1).bytes));
  }
  throw UserError(
      "memory.device_budget: {} is not enough to generate, which takes {} ({} bytes) at least: {}; "
      "give that much, or {}",
      format_bytes(budget),
      format_bytes(least.bytes),
      least.bytes,
      least.parts,
      change);
}

void GenerationModel::read_weights() {
  for (const auto& unit : model_->chain().units) {
    const ScopedCategory parameters(memory_, Category::kParameters);
    unit->bind_data(at::zeros({unit->held(unit->numel())}, at::TensorOptions(unit->held_dtype())));
  }
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  const UnitSource values = [&](int unit) {
    return UnitValues{.values = model_->chain().units[static_cast<size_t>(unit)]->data()};
  };
  if (source_.checkpoint) {
    load_values(CheckpointReader(*source_.checkpoint), model_->chain(), values);
  } else {
    model_->fill(0, values);
  }
}

int64_t GenerationModel::weight_bytes() const {
  int64_t bytes = 0;
  for (const auto& unit : model_->chain().units) {
    bytes += unit->held_bytes();
  }
  return bytes;
}

std::string GenerationModel::description() const {
  const at::ScalarType compute = model_->decoder_options().compute;
  return fmt::format(
      "{}, {:L} parameters in {} ({})",
      model_->decoder().family->name,
      model_->chain().parameter_count(),
      compute == at::kFloat          ? "fp32"
          : compute == at::kBFloat16 ? "bf16"
                                     : "fp16",
      format_bytes(weight_bytes()));
}

int64_t GenerationModel::max_positions() const {
  const DecoderConfig& decoder = model_->decoder();
  const bool stretches = decoder.family->rotary && decoder.rope.type == RopeType::kDynamic;
  return stretches ? 0 : model_->max_positions();
}

void GenerationModel::compute(const std::string& doing, const std::function<void()>& part) {
  const ScopedContext here(memory_);
  const ScopedCategory scratch(memory_, Category::kWorkspace);
  name_shortages(memory_, doing, part);
}

} // namespace palimpsest
