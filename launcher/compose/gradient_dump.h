#pragma once

// Writes the first step's accumulated gradients to a safetensors file, under the parameters' names.
//
//   GradientDump dump("gradients.safetensors", chain);
//   Executor executor(chain, {..., .observers = {&dump}});

#include <palimpsest/core/contracts/chain.h>
#include <palimpsest/core/contracts/observer.h>

#include <filesystem>
#include <utility>

namespace palimpsest {

class GradientDump final : public Observer {
 public:
  /// The chain outlives the dump.
  GradientDump(std::filesystem::path file, const Chain& chain)
      : file_(std::move(file)), chain_(chain) {}

  /// At the first AGREE, where all gradients are complete and none is clipped.
  void op_begin(size_t index, const Op& op) override;

 private:
  std::filesystem::path file_;
  const Chain& chain_;
  bool done_ = false;
};

} // namespace palimpsest
