#pragma once

// Which parameters a user's expressions keep as they are.
//
//   const Freeze freeze("training.freeze", {"embed", "layers\\.[01]\\."});
//   Chain chain = build_decoder(config, {.trainable = freeze.trainable()});
//   freeze.check(chain);

#include <palimpsest/core/base/pattern.h>
#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/models/param_ref.h>

#include <string>
#include <utility>
#include <vector>

namespace palimpsest {

class Freeze {
 public:
  /// Regular expressions, each searched in the names. UserError naming `key` for an invalid one.
  Freeze(const std::string& key, const std::vector<std::string>& expressions);

  /// Whether none of them is found in a name. Empty where there are none: all parameters are trained.
  TrainableFilter trainable() const;

  /// UserError for an expression that is found in none of the chain's names, and where nothing is
  /// left to train.
  void check(const Chain& chain) const;

 private:
  std::string key_;
  std::vector<std::pair<std::string, Pattern>> patterns_;
};

} // namespace palimpsest
