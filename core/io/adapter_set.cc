#include <palimpsest/core/io/adapter_set.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/pattern.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace palimpsest {
namespace {

constexpr std::string_view kAllLinear = "all-linear";
constexpr std::string_view kA = ".lora_A.weight";
constexpr std::string_view kB = ".lora_B.weight";

bool targeted(const AdapterChoice& choice, const std::string& layer) {
  return std::ranges::any_of(choice.targets, [&](const std::string& target) {
    return target == kAllLinear || ends_in_name(layer, target);
  });
}

void check_targets(const AdapterChoice& choice, std::span<const LinearDeclaration> layers) {
  for (const std::string& target : choice.targets) {
    if (target == kAllLinear) {
      if (choice.targets.size() > 1) {
        throw UserError(
            "lora.target_modules: all-linear stands for every linear layer, so nothing can stand "
            "beside it; give all-linear alone or a list of names");
      }
      continue;
    }
    if (std::ranges::none_of(
            layers, [&](const auto& layer) { return ends_in_name(layer.name, target); })) {
      throw UserError(
          "lora.target_modules: no linear layer of the model is called '{}'; give all-linear, or "
          "some of {}",
          target,
          last_parts(layers));
    }
  }
}

} // namespace

double AdapterSet::scale(const AdapterShape& shape) const {
  const auto rank = static_cast<double>(shape.rank);
  return shape.alpha / (rslora ? std::sqrt(rank) : rank);
}

AdapterTensors adapter_tensors(const LinearDeclaration& layer, const AdapterShape& shape) {
  return {
      .a =
          {.name = fmt::format("{}{}", layer.name, kA),
           .dtype = StoredDtype::F32,
           .shape = {shape.rank, layer.inputs}},
      .b = {
          .name = fmt::format("{}{}", layer.name, kB),
          .dtype = StoredDtype::F32,
          .shape = {layer.outputs, shape.rank}}};
}

std::vector<TensorDeclaration> adapter_tensors(
    const AdapterSet& set,
    std::span<const LinearDeclaration> layers) {
  std::vector<TensorDeclaration> tensors;
  for (const LinearDeclaration& layer : layers) {
    if (const auto found = set.layers.find(layer.name); found != set.layers.end()) {
      AdapterTensors pair = adapter_tensors(layer, found->second);
      tensors.push_back(std::move(pair.a));
      tensors.push_back(std::move(pair.b));
    }
  }
  return tensors;
}

bool is_adapter(std::string_view parameter) {
  return parameter.ends_with(kA) || parameter.ends_with(kB);
}

AdapterSet choose_adapters(const AdapterChoice& choice, std::span<const LinearDeclaration> layers) {
  check_targets(choice, layers);
  std::vector<Pattern> patterns;
  for (const AdapterPattern& pattern : choice.patterns) {
    patterns.emplace_back("lora.patterns", pattern.match);
  }
  std::vector<bool> found(patterns.size(), false);
  AdapterSet set{
      .layers = {},
      .usual = {.rank = choice.rank, .alpha = choice.alpha},
      .dropout = choice.dropout,
      .rslora = choice.rslora};
  for (const LinearDeclaration& layer : layers) {
    if (!targeted(choice, layer.name)) {
      continue;
    }
    AdapterShape shape = set.usual;
    bool decided = false;
    for (size_t index = 0; index < patterns.size(); ++index) {
      if (patterns[index].found_in(layer.name)) {
        found[index] = true;
        if (!decided) {
          shape.rank = choice.patterns[index].rank.value_or(shape.rank);
          shape.alpha = choice.patterns[index].alpha.value_or(shape.alpha);
          decided = true;
        }
      }
    }
    set.layers.emplace(layer.name, shape);
  }
  for (size_t index = 0; index < patterns.size(); ++index) {
    if (!found[index]) {
      throw UserError(
          "lora.patterns: '{}' is found in no layer that lora.target_modules chooses, for example "
          "{}; correct it or leave it out",
          choice.patterns[index].match,
          set.layers.begin()->first);
    }
  }
  return set;
}

bool ends_in_name(std::string_view layer, std::string_view name) {
  return layer.ends_with(name) && !name.empty() &&
      (layer.size() == name.size() || layer[layer.size() - name.size() - 1] == '.');
}

std::string last_parts(std::span<const LinearDeclaration> layers) {
  std::set<std::string_view> names;
  for (const LinearDeclaration& layer : layers) {
    const std::string_view name = layer.name;
    names.insert(name.substr(name.rfind('.') + 1));
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

} // namespace palimpsest
