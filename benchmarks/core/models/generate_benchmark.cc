// A step of generation against the time that reading the same bytes takes: weights once, and the
// keys and values of every sequence. Both run in turn, so that load on the machine hits them alike;
// the time shown is a step's, "of_bound" the median time of reading over that of the step.

#include <palimpsest/benchmarks/core/timing.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/generator.h>

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

namespace palimpsest {
namespace {

/// Some 200 M parameters in the shape of a small LLaMA: far beyond any cache.
DecoderConfig config() {
  DecoderConfig config;
  config.vocab_size = 16384;
  config.hidden_size = 1024;
  config.intermediate_size = 2816;
  config.num_hidden_layers = 14;
  config.num_attention_heads = 16;
  config.num_key_value_heads = 4;
  config.head_dim = 64;
  config.max_position_embeddings = 4096;
  return complete_decoder_config(config, "benchmark");
}

/// Reads all of it on all threads, in several streams each: one alone is slower than the memory.
void read_all(const at::Tensor& bytes) {
  constexpr int64_t kStreams = 4;
  const auto* words = static_cast<const uint64_t*>(bytes.const_data_ptr());
  std::atomic<uint64_t> seen = 0;
  at::parallel_for(0, bytes.numel() / 8, 1 << 16, [&](int64_t begin, int64_t end) {
    const int64_t length = (end - begin) / kStreams;
    std::array<uint64_t, kStreams> mixed{};
    for (int64_t i = begin; i < begin + length; i += 8) { // a line of the cache
      for (int64_t stream = 0; stream < kStreams; ++stream) {
        mixed[static_cast<size_t>(stream)] ^= words[stream * length + i];
      }
    }
    for (const uint64_t word : mixed) {
      seen ^= word;
    }
  });
  benchmark::DoNotOptimize(seen.load());
}

/// Arguments: dtype (0: fp32, 1: bf16), sequences, tokens of each.
void BM_Step(benchmark::State& state) {
  install_cpu_allocator(); // memory as the program has it
  const auto dtype = state.range(0) == 0 ? at::kFloat : at::kBFloat16;
  const int64_t sequences = state.range(1);
  const int64_t tokens = state.range(2);
  const DecoderConfig decoder = config();
  Chain chain = build_decoder(decoder, {.compute = dtype});
  int64_t bytes = 0;
  for (const auto& unit : chain.units) {
    unit->bind_data(at::zeros({unit->numel()}, at::TensorOptions(dtype)));
    bytes += unit->held_bytes();
  }
  initialise_decoder(chain, decoder, 1, [&](int unit) {
    return UnitValues{.values = chain.units[static_cast<size_t>(unit)]->data()};
  });
  // The embedding is a row's, not read whole.
  bytes -= decoder.vocab_size * decoder.hidden_size * static_cast<int64_t>(c10::elementSize(dtype));
  const Generator generator(chain);
  bytes += sequences * generator.cache_bytes(tokens);
  std::vector<KvCache> held;
  for (int64_t i = 0; i < sequences; ++i) {
    held.push_back(generator.new_cache(tokens + 1));
    generator.extend(held.back(), std::vector<int32_t>(static_cast<size_t>(tokens), 7));
  }
  std::vector<KvCache*> caches;
  for (KvCache& cache : held) {
    caches.push_back(&cache);
  }
  const std::vector<int32_t> newest(static_cast<size_t>(sequences), 9);
  const at::Tensor memory = at::zeros({bytes}, at::kByte);
  const auto step = [&] {
    generator.step(caches, newest);
    for (KvCache* cache : caches) {
      cache->truncate(tokens);
    }
  };
  step();
  read_all(memory);
  std::vector<double> steps;
  std::vector<double> reads;
  for (auto _ : state) {
    steps.push_back(seconds(step));
    reads.push_back(seconds([&] { read_all(memory); }));
    state.SetIterationTime(steps.back());
  }
  state.counters["tokens/s"] = static_cast<double>(sequences) / median(steps);
  state.counters["read_GB/s"] = static_cast<double>(bytes) / median(reads) / 1e9;
  state.counters["of_bound"] = median(reads) / median(steps);
}

BENCHMARK(BM_Step)
    ->ArgNames({"bf16", "sequences", "tokens"})
    ->Args({0, 1, 128})
    ->Args({1, 1, 128})
    ->Args({0, 1, 2048})
    ->Args({0, 8, 128})
    ->Args({1, 8, 128})
    ->Args({0, 32, 128})
    ->UseManualTime()
    ->Unit(benchmark::kMillisecond);

} // namespace
} // namespace palimpsest
