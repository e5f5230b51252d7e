// Texts encoded by one thread and by two: BENCH_TOKENIZER names the tokenizer's folder and BENCH_TEXT a
// file of texts with a zero byte after each (default: a small tokenizer and its test texts).
// benchmarks/tokenizer runs this beside the reference library.

#include <palimpsest/core/base/files.h>
#include <palimpsest/core/data/tokenizer/tokenizer.h>

#include <benchmark/benchmark.h>
#include <nlohmann/json.hpp>

#include <atomic>
#include <cstdlib>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace palimpsest {
namespace {

std::string folder() {
  const char* given = std::getenv("BENCH_TOKENIZER");
  return given != nullptr ? given : PALIMPSEST_BENCH_TOKENIZER;
}

std::vector<std::string> read_texts() {
  std::vector<std::string> texts;
  if (const char* given = std::getenv("BENCH_TEXT"); given != nullptr) {
    const std::string all = read_file(given);
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find('\0', begin), all.size());
      texts.push_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
    return texts;
  }
  const auto cases = nlohmann::json::parse(read_file(folder() + "/cases.json"));
  for (const auto& one : cases.at("cases")) {
    texts.push_back(one.at("text").get<std::string>());
  }
  return texts;
}

/// Encodes every text with encoders that have met none of them.
std::vector<std::vector<int32_t>> encode_all(
    const Tokenizer& tokenizer,
    const std::vector<std::string>& texts,
    int64_t threads) {
  std::vector<std::vector<int32_t>> ids(texts.size());
  std::atomic<size_t> next = 0;
  const auto work = [&] {
    constexpr size_t kBlock = 16;
    Encoder encoder(tokenizer);
    for (size_t begin = next.fetch_add(kBlock); begin < texts.size();
         begin = next.fetch_add(kBlock)) {
      for (size_t i = begin; i < std::min(begin + kBlock, texts.size()); ++i) {
        encoder.encode(texts[i], SpecialTokens::kAdd, ids[i]);
      }
    }
  };
  std::vector<std::jthread> others;
  for (int64_t thread = 1; thread < threads; ++thread) {
    others.emplace_back(work);
  }
  work();
  others.clear(); // joins
  return ids;
}

void BM_Encode(benchmark::State& state) {
  const Tokenizer tokenizer(folder());
  const std::vector<std::string> texts = read_texts();
  int64_t bytes = 0;
  int64_t tokens = 0;
  uint64_t sum = 0; // of the ids by their places: two libraries' may be compared
  for (const std::string& text : texts) {
    bytes += std::ssize(text);
  }
  for (auto _ : state) {
    const std::vector<std::vector<int32_t>> ids = encode_all(tokenizer, texts, state.range(0));
    state.PauseTiming();
    tokens = 0;
    sum = 0;
    for (const std::vector<int32_t>& one : ids) {
      for (const int32_t id : one) {
        sum += static_cast<uint64_t>(id) * static_cast<uint64_t>(++tokens % 1009);
      }
    }
    state.ResumeTiming();
  }
  state.SetBytesProcessed(bytes * state.iterations());
  state.counters["tokens"] = static_cast<double>(tokens);
  state.counters["sum"] = static_cast<double>(sum);
}

BENCHMARK(BM_Encode)->ArgName("threads")->Arg(1)->Arg(2)->UseRealTime()->Unit(
    benchmark::kMillisecond);

} // namespace
} // namespace palimpsest
