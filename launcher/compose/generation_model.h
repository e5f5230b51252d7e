#pragma once

// A model with its weights in memory, ready to generate.
//
//   GenerationModel model(find_generation_source("Llama-3.2-1B", {}));
//   model.require_budget({{.prompt = 100, .tokens = 356}}, /*batch=*/16);
//   model.load();
//   KvCache cache = model.generator().new_cache(2048);
//
// Weights are held once, in the type that the model computes in; there are no gradients and no
// optimizer. Everything is charged to the model's own memory context, whose limit is
// memory.device_budget.

#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/models/generator.h>
#include <palimpsest/launcher/compose/generation_source.h>
#include <palimpsest/launcher/compose/model.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {

class GenerationModel {
 public:
  /// Opens and checks the model's files; reads no weights. UserError where it is no decoder, or its
  /// files do not fit each other. Installs the tracked CPU allocator and sets the threads.
  explicit GenerationModel(GenerationSource source);

  /// What memory.device_budget must be at least for texts of these lengths, so many at a time.
  /// Measured, without the weights.
  struct LeastBudget {
    int64_t bytes = 0;
    std::string parts; // "weights 978 KiB, keys and values 306 KiB, workspace 64 KiB"
    /// Measuring came to the end of the memory, or showed that the budget is too small: it takes
    /// more than `bytes` then, and `parts` has no workspace.
    std::optional<RefusedAllocation> refused;
  };
  LeastBudget least_budget(const std::vector<Generator::Length>& texts, int64_t batch) const;
  /// UserError naming it where a smaller one is set, EnvironmentError where there is not the memory to
  /// measure it. Nothing is measured where none is set.
  void require_budget(const std::vector<Generator::Length>& texts, int64_t batch) const;

  /// Reads the weights. EnvironmentError where they do not fit the memory.
  void load();

  const Model& model() const {
    return *model_;
  }
  const Generator& generator() const {
    return *generator_;
  }
  /// Of all parameters, as they are held.
  int64_t weight_bytes() const;
  /// "llama, 250,432 parameters in fp32 (978 KiB)".
  std::string description() const;
  /// Positions of a sequence; 0: any number, as a dynamic rotary embedding has.
  int64_t max_positions() const;

  /// Runs a part that computes, in this model's memory context: memory that runs out in it is an
  /// EnvironmentError that says `doing` and what is held.
  void compute(const std::string& doing, const std::function<void()>& part);

 private:
  void read_weights();
  int64_t most_for_measuring() const;

  GenerationSource source_;
  MemoryContext memory_;
  std::optional<Model> model_;
  std::optional<Generator> generator_;
  int64_t held_before_ = 0; // the weights
};

} // namespace palimpsest
