#pragma once

// Writes the first step's accumulated gradients to a safetensors file, under the parameters' names.
//
//   GradientDump dump("gradients.safetensors", chain, lead);       // on rank 0, elsewhere without a file
//   Executor executor(chain, {..., .observers = {&dump}});

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/io/safetensors.h>
#include <palimpsest/core/models/weights.h>

#include <filesystem>
#include <functional>
#include <optional>

namespace palimpsest {

class GradientDump final : public Observer {
 public:
  /// Gives the first of all ranks whole gradients (whole_units.h); called on all of them.
  using Lead = std::function<void(const std::function<void(const UnitSource&)>& use)>;

  /// Opens the file, so that an unwritable one is known before the first step: EnvironmentError.
  /// The chain outlives the dump.
  GradientDump(std::optional<std::filesystem::path> file, const Chain& chain, Lead lead);

  /// At the first AGREE, where all gradients are complete and none is clipped.
  void op_end(size_t index, const Op& op) override;

 private:
  void write(const UnitSource& source);

  const Chain& chain_;
  Lead lead_;
  std::optional<SafetensorsWriter> writer_;
  bool done_ = false;
};

} // namespace palimpsest
