#include <palimpsest/core/optim/register_optimizers.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/optim/adamw.h>
#include <palimpsest/core/optim/sgd.h>

#include <functional>
#include <map>

namespace palimpsest {

namespace {

using Factory = std::function<std::unique_ptr<Optimizer>(const OptimizerSettings&)>;

std::map<std::string, Factory> register_optimizers() {
  return {
      {"adamw", [](const auto& s) { return std::make_unique<AdamW>(s.beta1, s.beta2, s.eps); }},
      {"sgd", [](const auto& s) { return std::make_unique<Sgd>(s.momentum); }},
  };
}

} // namespace

std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings) {
  const std::map<std::string, Factory> optimizers = register_optimizers();
  const auto found = optimizers.find(settings.name);
  if (found != optimizers.end()) {
    return found->second(settings);
  }
  std::string known;
  for (const auto& [name, factory] : optimizers) {
    known += (known.empty() ? "" : ", ") + name;
  }
  throw UserError("optimizer.name: \"{}\" is unknown; known are {}", settings.name, known);
}

} // namespace palimpsest
