// What a run says of itself when it could not learn.

#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/cli/progress.h>

#include <gmock/gmock.h>

#include <cmath>
#include <sstream>

namespace palimpsest::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(SkippedRun, IsRefusedOnlyWhenNoStepCounted) {
  std::ostringstream out;
  Progress progress(3, 0, out);
  const StepRecord no_target{.step = 1, .skipped = true};
  const StepRecord not_finite{.step = 2, .loss = std::nan(""), .skipped = true};
  progress.require_update(); // nothing has run
  progress.step_end(no_target);
  progress.step_end(not_finite);
  try {
    progress.require_update();
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(
        error.what(),
        AllOf(
            HasSubstr("nothing was learned in 2 steps: "),
            HasSubstr("1 had a loss or gradient that is not finite, 1 no target"),
            HasSubstr("no model is written")));
  }
  progress.step_end({.step = 3});
  progress.require_update();
}

// The weights are not to blame where a loss is finite and its gradient overflows.
TEST(SkippedRun, BlamesTheLossScaleWhereTheLossIsFinite) {
  for (const double loss : {2.5, std::nan("")}) {
    std::ostringstream out;
    Progress progress(1, 1, out);
    progress.step_end(
        {.step = 1, .loss = loss, .grad_norm = -std::nan(""), .skipped = true, .loss_scale = 1e9});
    EXPECT_THAT(out.str(), HasSubstr("norm nan"));
    try {
      progress.require_update();
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_THAT(
          error.what(),
          HasSubstr(
              std::isfinite(loss) ? "lower precision.loss_scaling" : "check the model's weights"));
    }
  }
}

} // namespace
} // namespace palimpsest::testing
