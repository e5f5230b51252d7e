#pragma once

// The optimizers by name. A new one is a file of its own and a line in register_optimizers.cc.
//
//   std::unique_ptr<Optimizer> optimizer = make_optimizer({.name = "adamw", .beta2 = 0.95});

#include <palimpsest/core/contracts/optimizer.h>

#include <memory>
#include <string>

namespace palimpsest {

/// The keys of `optimizer` that shape an update rule; a rule reads those that are its own.
struct OptimizerSettings {
  std::string name = "adamw";
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double momentum = 0;
};

/// UserError listing the known names where `settings.name` is none of them.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerSettings& settings);

} // namespace palimpsest
