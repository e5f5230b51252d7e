#pragma once

// Writes the first step's accumulated gradients to a safetensors file, under the parameters' names.
//
//   GradientDump dump("gradients.safetensors", chain);
//   Executor executor(chain, {..., .observers = {&dump}});

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/contracts/observer.h>
#include <palimpsest/core/io/safetensors.h>

#include <filesystem>

namespace palimpsest {

class GradientDump final : public Observer {
 public:
  /// Opens the file, so that an unwritable one is known before the first step: EnvironmentError.
  /// The chain outlives the dump.
  GradientDump(std::filesystem::path file, const Chain& chain);

  /// At the first AGREE, where all gradients are complete and none is clipped.
  void op_end(size_t index, const Op& op) override;

 private:
  const Chain& chain_;
  SafetensorsWriter writer_;
  bool done_ = false;
};

} // namespace palimpsest
