#include <palimpsest/core/models/kv_cache.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/memory_context.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/randn.h>

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace palimpsest {
namespace {

constexpr int64_t kHeads = 2;
constexpr int64_t kWidth = 4;

CacheShape shape(int64_t window, int64_t most = 1000) {
  return {.kv_heads = kHeads, .head_dim = kWidth, .window = window, .most = most};
}

/// A cache beside all that it was given.
class Twin {
 public:
  explicit Twin(int64_t window) : window_(window), cache_(shape(window)) {}

  void append(int64_t tokens) {
    const at::Tensor k = at::randn({tokens, kHeads, kWidth}, at::kFloat);
    const at::Tensor v = at::randn({tokens, kHeads, kWidth}, at::kFloat);
    cache_.append(k, v);
    k_ = k_.defined() ? at::cat({k_, k}) : k;
    v_ = v_.defined() ? at::cat({v_, v}) : v;
    expect_seen(tokens);
  }
  void truncate(int64_t length) {
    ASSERT_TRUE(cache_.truncate(length));
    k_ = k_.narrow(0, 0, std::min(length, k_.size(0)));
    v_ = v_.narrow(0, 0, std::min(length, v_.size(0)));
    EXPECT_EQ(cache_.length(), k_.size(0));
  }
  LayerCache& cache() {
    return cache_;
  }

 private:
  // The last `queries` tokens see themselves and, together, window - 1 tokens before the first.
  void expect_seen(int64_t queries) {
    const int64_t all = k_.size(0);
    ASSERT_EQ(cache_.length(), all);
    const int64_t count = window_ == 0 ? all : std::min(all, window_ + queries - 1);
    const auto [k, v] = cache_.seen(queries);
    EXPECT_TRUE(k.equal(k_.narrow(0, all - count, count)));
    EXPECT_TRUE(v.equal(v_.narrow(0, all - count, count)));
  }

  int64_t window_;
  LayerCache cache_;
  at::Tensor k_;
  at::Tensor v_;
};

TEST(LayerCache, GivesBackWhatTokensSee) {
  for (const int64_t window : {0, 1, 2, 5, 70, 200}) {
    SCOPED_TRACE(window);
    Twin twin(window);
    for (const int64_t tokens : {3, 1, 1, 70, 1, 1, 1, 130, 2, 1}) {
      twin.append(tokens);
    }
    for (int64_t i = 0; i < 150; ++i) {
      twin.append(1);
    }
  }
}

TEST(LayerCache, AWindowBoundsTheMemory) {
  Twin windowed(100);
  Twin whole(0);
  for (int64_t i = 0; i < 900; ++i) {
    windowed.append(1);
    whole.append(1);
    EXPECT_LE(windowed.cache().bytes(), 200 * windowed.cache().shape().bytes_per_token());
  }
  EXPECT_GE(whole.cache().bytes(), 900 * whole.cache().shape().bytes_per_token());
  EXPECT_EQ(whole.cache().bytes(), shape(0).bytes_for(1000)); // never more than it may become
}

TEST(LayerCache, ForgetsTheEnd) {
  for (const int64_t window : {0, 5}) {
    Twin twin(window);
    twin.append(20);
    twin.truncate(30); // nothing to forget
    twin.truncate(12);
    twin.append(4);
    twin.append(1);
  }
}

TEST(LayerCache, SaysWhereTheWindowHasForgotten) {
  LayerCache cache(shape(5));
  const at::Tensor one = at::randn({1, kHeads, kWidth}, at::kFloat);
  for (int64_t i = 0; i < 300; ++i) {
    cache.append(one, one);
  }
  EXPECT_FALSE(cache.truncate(10));
  EXPECT_EQ(cache.length(), 300);
  EXPECT_TRUE(cache.truncate(299));
  KvCache sequence({LayerCache(shape(0)), cache});
  EXPECT_EQ(sequence.truncate(10), 0); // all layers or none
  EXPECT_EQ(sequence.layers()[1].length(), 0);
}

TEST(LayerCache, MoreThanItIsForIsOurError) {
  LayerCache cache(shape(0, /*most=*/4));
  const at::Tensor five = at::randn({5, kHeads, kWidth}, at::kFloat);
  EXPECT_THROW(cache.append(five, five), InternalError);
  const at::Tensor other = at::randn({1, kHeads + 1, kWidth}, at::kFloat);
  EXPECT_THROW(cache.append(other, other), InternalError);
}

TEST(LayerCache, IsChargedAsActivations) {
  install_cpu_allocator();
  MemoryContext memory("test");
  const ScopedContext here(memory);
  const at::Tensor ten = at::randn({10, kHeads, kWidth}, at::kFloat);
  LayerCache cache(shape(0));
  const ScopedCategory scratch(memory, Category::kWorkspace);
  cache.append(ten, ten);
  EXPECT_EQ(memory.usage(Category::kActivations).live, cache.bytes());
  EXPECT_GT(cache.bytes(), 0);
}

// Token by token after a prompt that came at once, in a cache that is for so many tokens or more.
TEST(LayerCache, GrowsAsSaid) {
  for (const int64_t window : {0, 1, 3, 40, 200}) {
    for (const int64_t prompt : {1, 30, 64, 150}) {
      for (const int64_t tokens : {prompt, prompt + 1, int64_t{155}, int64_t{500}}) {
        for (const int64_t most : {tokens, tokens + 100, int64_t{100'000}}) {
          SCOPED_TRACE(::testing::Message() << window << " " << prompt << " " << tokens);
          LayerCache cache(shape(window, most));
          const int64_t token_bytes = cache.shape().bytes_per_token();
          int64_t room = 0;
          int64_t outgrown = 0;
          const void* place = nullptr;
          for (int64_t length = 0; length < tokens;) {
            const int64_t before = cache.bytes() / token_bytes;
            const int64_t next = length == 0 ? prompt : 1;
            const at::Tensor part = at::randn({next, kHeads, kWidth}, at::kFloat);
            cache.append(part, part);
            length += next;
            room = std::max(room, cache.bytes() / token_bytes);
            const void* now = cache.seen(1).k.storage().data();
            outgrown = std::max(outgrown, std::exchange(place, now) == now ? 0 : before);
          }
          const CacheShape::Growth said = cache.shape().growth(prompt, tokens);
          EXPECT_EQ(said.room, room) << most;
          EXPECT_EQ(said.outgrown, outgrown) << most;
        }
      }
    }
  }
}

// By hand: 40 tokens have room for 64, which becomes 128 with the 65th and 256 with the 129th.
TEST(LayerCache, DoublesWhenItIsFull) {
  EXPECT_EQ(shape(0).growth(40, 64).room, 64);
  EXPECT_EQ(shape(0).growth(40, 64).outgrown, 0);
  EXPECT_EQ(shape(0).growth(40, 65).room, 128);
  EXPECT_EQ(shape(0).growth(40, 129).room, 256);
  EXPECT_EQ(shape(0).growth(40, 129).outgrown, 128);
  EXPECT_EQ(shape(0).growth(70, 70).room, 70);
  EXPECT_EQ(shape(0).growth(70, 71).room, 140);
  EXPECT_EQ(shape(0, /*most=*/100).growth(70, 71).room, 100);
}

} // namespace
} // namespace palimpsest
