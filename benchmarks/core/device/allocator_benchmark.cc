// What an allocation costs, alone and with the filling that makes its pages real: fresh pages,
// reused ones, the C library's malloc and LibTorch's default allocator.

#include <palimpsest/core/device/allocator.h>

#include <benchmark/benchmark.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <cstring>

namespace palimpsest {
namespace {

void allocate_and_fill(benchmark::State& state, c10::Allocator& allocator, bool fresh) {
  const auto bytes = static_cast<size_t>(state.range(0));
  int64_t filled = 0;
  for (auto _ : state) {
    {
      const c10::DataPtr block = allocator.allocate(bytes);
      std::memset(block.get(), 1, bytes);
      benchmark::DoNotOptimize(block.get());
    }
    if (fresh) {
      CpuAllocator::instance().trim();
    }
    filled += state.range(0);
  }
  state.SetBytesProcessed(filled);
}

void BM_Reused(benchmark::State& state) {
  allocate_and_fill(state, CpuAllocator::instance(), false);
}

void BM_Fresh(benchmark::State& state) {
  allocate_and_fill(state, CpuAllocator::instance(), true);
}

void BM_LibTorchDefault(benchmark::State& state) {
  allocate_and_fill(state, *c10::GetDefaultCPUAllocator(), false);
}

void BM_Malloc(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  int64_t filled = 0;
  for (auto _ : state) {
    void* const block = std::malloc(bytes);
    std::memset(block, 1, bytes);
    benchmark::DoNotOptimize(block);
    std::free(block);
    filled += state.range(0);
  }
  state.SetBytesProcessed(filled);
}

BENCHMARK(BM_Reused)->RangeMultiplier(8)->Range(64 << 10, 64 << 20)->Arg(33 << 20);
BENCHMARK(BM_Fresh)->RangeMultiplier(8)->Range(64 << 10, 64 << 20)->Arg(33 << 20);
BENCHMARK(BM_LibTorchDefault)->RangeMultiplier(8)->Range(64 << 10, 64 << 20)->Arg(33 << 20);
BENCHMARK(BM_Malloc)->RangeMultiplier(8)->Range(64 << 10, 64 << 20)->Arg(33 << 20);

void allocate_only(benchmark::State& state, c10::Allocator& allocator) {
  const auto bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    const c10::DataPtr block = allocator.allocate(bytes);
    benchmark::DoNotOptimize(block.get());
  }
}

void BM_Allocate(benchmark::State& state) {
  allocate_only(state, CpuAllocator::instance());
}

void BM_AllocateLibTorchDefault(benchmark::State& state) {
  allocate_only(state, *c10::GetDefaultCPUAllocator());
}

BENCHMARK(BM_Allocate)->Arg(64)->Arg(4 << 10)->Arg(64 << 10)->Arg(1 << 20)->ThreadRange(1, 2);
BENCHMARK(BM_AllocateLibTorchDefault)
    ->Arg(64)
    ->Arg(4 << 10)
    ->Arg(64 << 10)
    ->Arg(1 << 20)
    ->ThreadRange(1, 2);

} // namespace
} // namespace palimpsest
