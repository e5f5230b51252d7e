#include <palimpsest/core/plan/device_room.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

TEST(DeviceRoom, TheLeastBudgetHasRoomAndOneByteLessHasNot) {
  for (const int64_t held : {int64_t{0}, int64_t{12'345}}) {
    for (int64_t counted = 1; counted < int64_t{1} << 40; counted = counted * 17 / 10 + 1) {
      const int64_t least = least_budget(counted, held);
      EXPECT_GE(room_for_plans(least, held), counted) << counted;
      EXPECT_LT(room_for_plans(least - 1, held), counted) << counted;
    }
  }
}

TEST(DeviceRoom, KeepsASmallShareAndAFewBytesForWhatNobodyCounts) {
  EXPECT_EQ(room_for_plans(250'000'000, 1'000), 250'000'000 - 1'000'000 - 32'768 - 1'000);
  EXPECT_LT(room_for_plans(1), 0);
}

/// One block of a value of 10 bytes, and the loss, on samples of `sample` bytes.
Job job_of(int64_t sample, int micro_batches) {
  JobDescription description;
  description.model.batch_bytes = sample;
  description.model.units = {{.name = "unit", .parameter_bytes = 4, .gradient_bytes = 4}};
  description.model.blocks = {
      {.name = "block", .reads = {{kLoader, 0}}, .value_bytes = {10}, .units = {0}},
      {.name = "loss", .reads = {{0, 0}}}};
  description.stages = {{0, 2}};
  description.micro_batches = micro_batches;
  description.training = false;
  return Job(std::move(description));
}

/// LOAD, both forwards and the DROPs of a micro-batch.
void add_evaluation(StepPlan& plan, int mb) {
  const Slot batch{.kind = SlotKind::kValue, .owner = kLoader, .mb = mb};
  const Slot value{.kind = SlotKind::kValue, .owner = 0, .mb = mb};
  plan.push_back(Op::load(mb));
  plan.push_back(Op::forward(0, mb, TapeMode::kNone, ValueSet{0}));
  plan.push_back(Op::drop(batch, TierId::kDevice));
  plan.push_back(Op::forward(1, mb, TapeMode::kNone, {}));
  plan.push_back(Op::drop(value, TierId::kDevice));
}

// Every moment has all samples, loaded, waiting or done with: 3 of 100 bytes, beside the unit's 4 and
// the value's 10.
TEST(DeviceRoom, AllSamplesOfAStepAreHeldFromBeginningToEnd) {
  const Job job = job_of(100, 3);
  StepPlan plan;
  for (int mb = 0; mb < 3; ++mb) {
    add_evaluation(plan, mb);
  }
  plan.push_back(Op::commit());
  const Plans plans = {plan};
  PlanReport report;
  report.ranks.resize(1);
  for (int mb = 0; mb < 3; ++mb) { // during the operations of each micro-batch
    for (const int64_t bytes : {104, 114, 114, 14, 14}) {
      report.ranks[0].device_bytes.push_back(bytes);
    }
  }
  report.ranks[0].device_bytes.push_back(4);
  EXPECT_EQ(peak_with_samples(plans, report, job), 3 * 100 + 4 + 10);
  EXPECT_EQ(peak_with_samples(plans, report, job, 7), 7 * 100 + 4 + 10); // the first three of seven
}

} // namespace
} // namespace palimpsest
