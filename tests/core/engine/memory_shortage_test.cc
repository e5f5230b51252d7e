#include <palimpsest/core/engine/memory_shortage.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>

#include <ATen/ops/empty.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <new>

namespace palimpsest {
namespace {

using ::testing::StrEq;
using ::testing::ThrowsMessage;

constexpr int64_t kMiB = int64_t{1} << 20;

at::Tensor bytes(int64_t count) {
  return at::empty({count}, at::kByte);
}

TEST(MemoryShortage, NamesWhatWasWantedAndWhoHoldsTheRest) {
  install_cpu_allocator();
  MemoryContext memory("rank 3");
  const ScopedContext here(memory);
  const ScopedCategory held(memory, Category::kParameters);
  const at::Tensor parameters = bytes(4 * kMiB);
  memory.set_limit(6 * kMiB);
  EXPECT_THAT(
      [&] {
        const ScopedCategory scratch(memory, Category::kWorkspace);
        const at::Tensor workspace = bytes(kMiB);
        name_shortages(memory, "reading weights", [] { bytes(8 * kMiB); });
      },
      ThrowsMessage<EnvironmentError>(StrEq(
          "out of memory while reading weights: 8.00 MiB wanted, 5.00 MiB of at most 6.00 MiB "
          "held: parameters 4.00 MiB, workspace 1.00 MiB")));
}

// Memory of a container, or of a library that does not ask our allocator.
TEST(MemoryShortage, NamesTheHoldersOfWhatIsTrackedWhereSomethingElseWasRefused) {
  install_cpu_allocator();
  MemoryContext memory("rank 3");
  const ScopedContext here(memory);
  const ScopedCategory held(memory, Category::kOptimizer);
  const at::Tensor moments = bytes(3 * kMiB);
  EXPECT_THAT(
      [&] { name_shortages(memory, "planning a step", [] { throw std::bad_alloc(); }); },
      ThrowsMessage<EnvironmentError>(
          StrEq("out of memory while planning a step: a library was refused the memory it needs, "
                "3.00 MiB held: optimizer 3.00 MiB")));
  EXPECT_EQ(latest_refusal(memory).bytes, 0);
  EXPECT_THAT(
      [&] {
        name_shortages(
            memory, "measuring", [] { throw std::bad_alloc(); }, "buy more");
      },
      ThrowsMessage<EnvironmentError>(StrEq(
          "out of memory while measuring: a library was refused the memory it needs, 3.00 MiB "
          "held: optimizer 3.00 MiB; buy more")));
}

TEST(MemoryShortage, TellsWhatWasRefusedInAPart) {
  install_cpu_allocator();
  MemoryContext memory("rank 3");
  const ScopedContext here(memory);
  EXPECT_FALSE(refusal_in(memory, [] { bytes(8); }));
  memory.set_limit(6 * kMiB);
  EXPECT_THROW(bytes(7 * kMiB), c10::OutOfMemoryError); // before, and none of the part's
  const auto refused = refusal_in(memory, [] { throw std::bad_alloc(); });
  ASSERT_TRUE(refused);
  EXPECT_EQ(refused->bytes, 0);
  EXPECT_EQ(refusal_in(memory, [] { bytes(8 * kMiB); }).value().bytes, 8 * kMiB);
  EXPECT_EQ(
      describe({.doing = "while loading", .refused = *refused}),
      "out of memory while loading: a library was refused the memory it needs, 0 B of at most 6.00 "
      "MiB held");
}

TEST(MemoryShortage, OtherErrorsPass) {
  MemoryContext memory("rank 0");
  EXPECT_THROW(name_shortages(memory, "x", [] { throw UserError("no file"); }), UserError);
  int ran = 0;
  name_shortages(memory, "x", [&] { ++ran; });
  EXPECT_EQ(ran, 1);
}

} // namespace
} // namespace palimpsest
