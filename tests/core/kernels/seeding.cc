// Every test of this folder draws the same numbers in every run, whatever ran before it.

#include <ATen/CPUGeneratorImpl.h>

#include <gtest/gtest.h>

namespace palimpsest::testing {
namespace {

class Seeding final : public ::testing::EmptyTestEventListener {
 public:
  void OnTestStart(const ::testing::TestInfo& /*test*/) override {
    constexpr uint64_t kSeed = 20;
    at::Generator generator = at::detail::getDefaultCPUGenerator();
    generator.set_current_seed(kSeed);
  }
};

[[maybe_unused]] const bool registered = [] {
  ::testing::UnitTest::GetInstance()->listeners().Append(new Seeding);
  return true;
}();

} // namespace
} // namespace palimpsest::testing
