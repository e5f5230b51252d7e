#include <palimpsest/core/base/refused_text.h>

#include <gmock/gmock.h>

#include <filesystem>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(RefusedText, NamesTheFileOrTheThreadAndWhy) {
  try {
    std::filesystem::create_directory("/nowhere/at/all");
    FAIL();
  } catch (const std::system_error& error) {
    EXPECT_EQ(refused_text(error), "cannot use /nowhere/at/all: No such file or directory");
  }
  const std::system_error thread(
      std::make_error_code(std::errc::resource_unavailable_try_again), "thread");
  EXPECT_THAT(
      refused_text(thread),
      AllOf(
          HasSubstr("cannot start a thread: Resource temporarily unavailable"),
          HasSubstr("ulimit -v")));
}

} // namespace
} // namespace palimpsest
