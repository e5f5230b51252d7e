#pragma once

// What is gathered and scattered, over Gloo here and over MPI in mpi/: 64 MiB over two ranks.

#include <benchmark/benchmark.h>

#include <cstdint>

namespace palimpsest {

inline constexpr int kRanks = 2;
inline constexpr int64_t kWhole = (64 << 20) / sizeof(float);
inline constexpr int kIterations = 20; // fixed, since both ranks must call alike

inline void report_bytes(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * kWhole * static_cast<int64_t>(sizeof(float)));
}

inline void alike_on_both_ranks(benchmark::internal::Benchmark* benchmark) {
  benchmark->Iterations(kIterations)->Repetitions(3)->UseRealTime()->Unit(benchmark::kMillisecond);
}

} // namespace palimpsest
