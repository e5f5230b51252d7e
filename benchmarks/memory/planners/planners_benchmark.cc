// Time and memory of the table of the fastest plans: blocks by slots, at a budget that keeps
// everything, so that no slot is spared.

#include <palimpsest/memory/planners/dynamic_programming.h>

#include <benchmark/benchmark.h>

namespace palimpsest {
namespace {

/// Alternating attention and MLP blocks of sizes without a common divisor, as measured ones are.
CostChain decoder_like(int blocks) {
  CostChain chain{.input_bytes = 1'048'583, .loss_seconds = 0.01, .loss_workspace = 33'554'467};
  for (int block = 0; block < blocks; ++block) {
    const int64_t tape = (block % 2 == 0 ? 12'582'917 : 17'825'803) + 1'000 * block;
    chain.stages.push_back(
        {.output_bytes = 1'048'583,
         .forward_seconds = block % 2 == 0 ? 0.0031 : 0.0047,
         .forward_workspace = 2'097'169,
         .tapes = {
             {.tape = TapeMode::kFull,
              .bytes = tape,
              .forward_workspace = 2'097'169,
              .backward_workspace = 4'194'319,
              .backward_seconds = 0.0081},
             {.tape = TapeMode::kLean,
              .bytes = tape / 3,
              .forward_workspace = 2'097'169,
              .backward_workspace = 14'194'319,
              .backward_seconds = 0.0093}}});
  }
  return chain;
}

void dynamic_program(benchmark::State& state) {
  const CostChain chain = decoder_like(static_cast<int>(state.range(0)));
  const int64_t enough = int64_t{1} << 50;
  size_t table_bytes = 0;
  for (auto _ : state) {
    const DynamicProgram program(chain, enough, static_cast<int>(state.range(1)));
    benchmark::DoNotOptimize(program.plan(enough));
    table_bytes = program.table_bytes();
  }
  state.counters["table_MB"] = static_cast<double>(table_bytes) / 1e6;
}
BENCHMARK(dynamic_program)
    ->ArgNames({"blocks", "slots"})
    ->Args({64, 500})
    ->Args({200, 500})
    ->Args({1000, 200})
    ->Unit(benchmark::kMillisecond)
    ->UseRealTime();

} // namespace
} // namespace palimpsest
