#include <palimpsest/core/models/generator.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/models/decoder.h>
#include <palimpsest/core/models/sampler.h>
#include <palimpsest/tests/core/models/chain_driver.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>

#include <c10/util/Exception.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <fstream>
#include <memory>

namespace palimpsest {
namespace {

using Ids = std::vector<int32_t>;

/// A model's chain with its weights, its config changed by `keys`.
class Loaded {
 public:
  explicit Loaded(
      const std::string& name,
      const nlohmann::json& keys = nlohmann::json::object(),
      at::ScalarType compute = at::kFloat)
      : folder_(model_folder(name)) {
    nlohmann::json config = nlohmann::json::parse(folder_.config_text());
    config.update(keys);
    config_ = parse_decoder_config(config.dump(), folder_.config_path());
    driver_ = std::make_unique<ChainDriver>(build_decoder(config_, {.compute = compute}));
    settle_folder(folder_, config_);
    load_weights(folder_, driver_->chain(), driver_->source());
    generator_ = std::make_unique<Generator>(driver_->chain());
  }
  const Generator& generator() const {
    return *generator_;
  }
  const Chain& chain() {
    return driver_->chain();
  }
  int64_t vocabulary() const {
    return config_.vocab_size;
  }

 private:
  HfFolder folder_;
  DecoderConfig config_;
  std::unique_ptr<ChainDriver> driver_;
  std::unique_ptr<Generator> generator_;
};

std::span<const float> row_of(const at::Tensor& scores, int64_t row) {
  return {
      scores.const_data_ptr<float>() + row * scores.size(1), static_cast<size_t>(scores.size(1))};
}

/// `count` tokens after each prompt, all prompts side by side.
std::vector<Ids> generate(
    const Generator& generator,
    const std::vector<Ids>& prompts,
    int64_t count,
    double penalty) {
  const SamplingSettings greedy{.temperature = 0, .repetition_penalty = penalty};
  std::vector<KvCache> caches;
  std::vector<Ids> all = prompts;
  for (Ids& ids : all) {
    caches.push_back(generator.new_cache(std::ssize(ids) + count));
    ids.push_back(sample_token(row_of(generator.extend(caches.back(), ids), 0), ids, greedy, {}));
  }
  for (int64_t step = 1; step < count; ++step) {
    std::vector<KvCache*> active;
    Ids newest;
    for (size_t i = 0; i < all.size(); ++i) {
      active.push_back(&caches[i]);
      newest.push_back(all[i].back());
    }
    const at::Tensor scores = generator.step(active, newest);
    for (size_t i = 0; i < all.size(); ++i) {
      const auto row = static_cast<int64_t>(i);
      all[i].push_back(sample_token(row_of(scores, row), all[i], greedy, {}));
    }
  }
  for (size_t i = 0; i < all.size(); ++i) {
    all[i].erase(all[i].begin(), all[i].begin() + std::ssize(prompts[i]));
  }
  return all;
}

// Every family, windows, lengths beyond what rotary embeddings were made for, prompts side by side.
TEST(Generator, WritesWhatTheReferenceWrites) {
  std::ifstream file(std::string(PALIMPSEST_TEST_DATA) + "/generations.json");
  const nlohmann::json cases = nlohmann::json::parse(file).at("greedy");
  ASSERT_GE(cases.size(), 14U);
  for (const nlohmann::json& one : cases) {
    SCOPED_TRACE(one.at("model").get<std::string>() + " " + one.at("config").dump());
    const Loaded model(one.at("model"), one.at("config"));
    std::vector<Ids> prompts;
    std::vector<Ids> expected;
    for (const nlohmann::json& prompt : one.at("prompts")) {
      prompts.push_back(prompt.at("prompt"));
      expected.push_back(prompt.at("tokens"));
    }
    EXPECT_EQ(
        generate(model.generator(), prompts, std::ssize(expected[0]), one.at("repetition_penalty")),
        expected);
  }
}

constexpr const char* kFamilies[] = {
    "llama-tiny",
    "llama3-rope",
    "mistral-window",
    "qwen2-window",
    "qwen3-tiny",
    "gemma-tiny",
    "gpt2-tiny"};

Ids some_ids(int64_t count, int64_t vocabulary, int32_t first) {
  Ids ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(static_cast<int32_t>((first + 37 * i + i * i) % vocabulary));
  }
  return ids;
}

at::Tensor whole_logits(const Chain& chain, const Ids& ids) {
  at::Tensor row = at::empty({1, std::ssize(ids)}, at::kLong);
  std::ranges::copy(ids, row.mutable_data_ptr<int64_t>());
  return decoder_logits(chain, row)[0].to(at::kFloat);
}

// Whatever is appended at a time, the scores are those of the whole text computed at once.
TEST(Generator, ACacheChangesNothing) {
  for (const char* name : kFamilies) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::string(name) + " " + c10::toString(compute));
      Loaded model(name, nlohmann::json::object(), compute);
      const Ids ids = some_ids(40, model.vocabulary(), 5);
      const at::Tensor expected = whole_logits(model.chain(), ids);
      const double limit = compute == at::kFloat ? 1e-5 : 3e-2;
      KvCache cache = model.generator().new_cache(40);
      int64_t done = 0;
      for (const int64_t count : {7, 1, 12, 1, 1, 9, 9}) {
        const auto part =
            std::span(ids).subspan(static_cast<size_t>(done), static_cast<size_t>(count));
        done += count;
        EXPECT_LE(
            relative_difference(model.generator().extend(cache, part)[0], expected[done - 1]),
            limit)
            << done;
      }
      EXPECT_EQ(cache.length(), 40);
    }
  }
}

TEST(Generator, ASequenceGetsTheSameBitsAloneAndOnAnyThreads) {
  const int threads = at::get_num_threads();
  for (const char* name : kFamilies) {
    for (const at::ScalarType compute : {at::kFloat, at::kBFloat16}) {
      SCOPED_TRACE(std::string(name) + " " + c10::toString(compute));
      const Loaded model(name, nlohmann::json::object(), compute);
      const Generator& generator = model.generator();
      std::vector<KvCache> together;
      std::vector<KvCache*> caches;
      Ids newest;
      for (int64_t i = 0; i < 5; ++i) {
        together.push_back(generator.new_cache(60));
        generator.extend(together.back(), some_ids(1 + 6 * i, model.vocabulary(), 3));
        newest.push_back(static_cast<int32_t>(7 + i));
      }
      for (KvCache& cache : together) {
        caches.push_back(&cache);
      }
      const at::Tensor scores = generator.step(caches, newest);
      for (int64_t i = 0; i < 5; ++i) {
        KvCache alone = generator.new_cache(60);
        generator.extend(alone, some_ids(1 + 6 * i, model.vocabulary(), 3));
        at::set_num_threads(i % 2 == 0 ? 1 : 2);
        const std::vector<KvCache*> one = {&alone};
        const Ids id = {newest[static_cast<size_t>(i)]};
        EXPECT_TRUE(generator.step(one, id)[0].equal(scores[i])) << i;
        at::set_num_threads(threads);
      }
    }
  }
}

TEST(Generator, AForgottenEndIsAsIfItHadNotBeen) {
  Loaded model("llama-tiny");
  const Ids ids = some_ids(20, model.vocabulary(), 11);
  KvCache cache = model.generator().new_cache(60);
  model.generator().extend(cache, ids);
  model.generator().extend(cache, some_ids(9, model.vocabulary(), 200));
  EXPECT_EQ(cache.truncate(12), 12);
  const at::Tensor scores = model.generator().extend(cache, std::span(ids).subspan(12));
  EXPECT_LE(relative_difference(scores[0], whole_logits(model.chain(), ids)[19]), 1e-5);
}

TEST(Generator, SaysWhatACacheTakes) {
  // 4 layers, 2 key/value heads of 16, keys and values in fp32
  EXPECT_EQ(Loaded("llama-tiny").generator().cache_bytes(100), 100 * 4 * 2 * 16 * 2 * 4);
  EXPECT_EQ(
      Loaded("llama-tiny", nlohmann::json::object(), at::kBFloat16).generator().cache_bytes(100),
      100 * 4 * 2 * 16 * 2 * 2);
  // 3 layers, 2 heads of 8; the last two see 5 keys
  EXPECT_EQ(Loaded("qwen2-window").generator().cache_bytes(100), (100 + 10 + 10) * 2 * 8 * 2 * 4);
}

// Some texts longer than others, windows and prompts beyond them.
TEST(Generator, MeasuringTakesNoMoreThanGenerating) {
  install_cpu_allocator();
  for (const char* name : {"llama-tiny", "qwen2-window", "mistral-window"}) {
    SCOPED_TRACE(name);
    const Loaded model(name);
    const std::vector<Generator::Length> lengths = {
        {.prompt = 10, .tokens = 20},
        {.prompt = 5, .tokens = 400},
        {.prompt = 10, .tokens = 20},
        {.prompt = 90, .tokens = 91}};
    int64_t caches = 0;
    for (const Generator::Length& length : lengths) {
      caches += model.generator().most_cache_bytes(length);
    }
    MemoryContext memory("test");
    const auto measure = [&] { return model.generator().most_scratch_bytes(lengths, 4, memory); };
    const int64_t scratch = measure();
    const int64_t peak = memory.total().peak;
    EXPECT_GT(scratch, 0);
    EXPECT_LE(peak, caches + scratch); // parameters are there already
    EXPECT_EQ(memory.total().live, 0);
    memory.set_limit(peak);
    EXPECT_EQ(measure(), scratch);
    for (const int64_t limit : {peak - 1, peak / 2, int64_t{0}}) {
      memory.set_limit(limit);
      memory.reset_peaks();
      EXPECT_THROW(measure(), c10::OutOfMemoryError) << limit;
      EXPECT_LE(memory.total().peak, limit);
      EXPECT_EQ(memory.total().live, 0);
    }
  }
}

TEST(Generator, MisuseIsOurError) {
  const Loaded model("llama-tiny");
  KvCache cache = model.generator().new_cache(60);
  EXPECT_THROW(model.generator().extend(cache, {}), InternalError);
  const std::vector<KvCache*> one = {&cache};
  const Ids two = {1, 2};
  EXPECT_THROW(model.generator().step(one, two), InternalError);
  Chain empty;
  EXPECT_THROW(Generator{empty}, InternalError);
}

} // namespace
} // namespace palimpsest
