// Budgets of ranks that are processes: what their messages take is not what threads of one process do.

#include <palimpsest/tests/launcher/program/program_testing.h>

#include <fmt/format.h>
#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using testing::kPatience;
using ::testing::Not;
using testing::Starter;
using testing::Words;

class Budget : public testing::ProgramRanks {
 protected:
  /// The exit code of a job of two ranks within so many bytes.
  int train_within(int64_t budget, Starter starter, Words settings) {
    std::filesystem::remove_all(output());
    settings.push_back(fmt::format("memory.device_budget={}", budget));
    const pid_t process =
        train(starter, 2, golden_config("llama-tiny"), settings, {{"OMP_WAIT_POLICY", "passive"}});
    return wait_for(process, kPatience).value_or(-1);
  }
};

TEST_F(Budget, TheLeastThatARefusalNamesIsExactlyEnough) {
  std::vector<Words> cases;
  for (const char* zero : {"3", "2", "0", "null", "1"}) {
    for (const char* policy : {"auto", "full", "dynamic_programming"}) {
      for (const char* reproducible : {"true", "false"}) {
        cases.push_back(
            {fmt::format("parallel.zero={}", zero),
             fmt::format("activation_checkpointing={}", policy),
             fmt::format("training.reproducible={}", reproducible)});
      }
    }
  }
  const std::vector<Starter> starters =
      testing::usable({Starter::kLaunchWithoutMpirun, Starter::kMpirun});
  for (size_t number = 0; number < cases.size(); number += testing::full_tests() ? 1 : 7) {
    const Words& settings = cases[number];
    const Starter starter = starters[number % starters.size()];
    SCOPED_TRACE(name_of(starter) + ::testing::PrintToString(settings));
    ASSERT_EQ(train_within(1, starter, settings), 2) << out() << err();
    const std::string told = out() + err();
    ASSERT_THAT(told, HasSubstr(" bytes) at least by "));
    const int64_t least = std::stoll(told.substr(told.rfind(" (", told.find(" bytes) ")) + 2));
    EXPECT_EQ(train_within(least, starter, settings), 0) << least << "\n" << out() << err();
    EXPECT_THAT(out() + err(), Not(HasSubstr("out of memory")));
    for (const auto& record : metrics()) {
      EXPECT_LE(record["peak_device_bytes"].get<int64_t>(), least);
    }
    EXPECT_EQ(train_within(least - 1, starter, settings), 2) << least << "\n" << out() << err();
  }
}

} // namespace
} // namespace palimpsest
