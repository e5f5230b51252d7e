// Covers: slot.cc

#include <palimpsest/core/plan/op.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unordered_set>

namespace palimpsest {
namespace {

StepPlan one_of_each() {
  const Slot tape{.kind = SlotKind::kTape, .owner = 3, .mb = 0};
  const Slot value{.kind = SlotKind::kValue, .owner = kLoader, .mb = 1};
  const Slot grad{.kind = SlotKind::kGrad, .owner = 2, .index = 1, .mb = 0};
  return {
      Op::load(1),
      Op::forward(3, 0, TapeMode::kLean, {0, 2}),
      Op::forward(4, 0, TapeMode::kFull, {}),
      Op::backward(3, 0),
      Op::backward(3, 0, BackwardPart::kWeight),
      Op::gather(7),
      Op::release(7),
      Op::reduce(7, {0, 4}, ReduceAxis::kReplicate),
      Op::stash(tape, TierId::kDisk),
      Op::fetch(tape, TierId::kHost),
      Op::send(value, 1),
      Op::recv(grad, 0),
      Op::drop({.kind = SlotKind::kGradBuffer, .owner = 7}, TierId::kDevice),
      Op::agree(),
      Op::update(7),
      Op::publish(7),
      Op::commit()};
}

TEST(Op, PrintsItsKindAndTheFieldsThatItUses) {
  EXPECT_EQ(
      to_text(one_of_each()),
      "LOAD mb=1\n"
      "FORWARD block=3 mb=0 tape=lean yields={0,2}\n"
      "FORWARD block=4 mb=0 tape=full yields={}\n"
      "BACKWARD block=3 mb=0 part=both\n"
      "BACKWARD block=3 mb=0 part=weight\n"
      "GATHER unit=7\n"
      "RELEASE unit=7\n"
      "REDUCE unit=7 mbs=[0,4) axis=replicate\n"
      "STASH slot=tape(3,mb=0) tier=disk\n"
      "FETCH slot=tape(3,mb=0) tier=host\n"
      "SEND slot=value(loader,0,mb=1) peer=1\n"
      "RECV slot=grad(2,1,mb=0) peer=0\n"
      "DROP slot=grad_buffer(7) tier=device\n"
      "AGREE\n"
      "UPDATE unit=7\n"
      "PUBLISH unit=7\n"
      "COMMIT\n");
}

TEST(Op, ReadsBackWhatItPrints) {
  const StepPlan plan = one_of_each();
  EXPECT_EQ(parse_plan(to_text(plan)), plan);
  EXPECT_EQ(parse_plan("# a comment\n\n" + to_text(plan)), plan);
}

TEST(Op, EqualityAndHashSeeEveryField) {
  const StepPlan plan = one_of_each();
  const std::unordered_set<Op> distinct(plan.begin(), plan.end());
  EXPECT_EQ(distinct.size(), plan.size());
  EXPECT_EQ(plan_hash(plan), plan_hash(parse_plan(to_text(plan))));
  StepPlan changed = plan;
  changed[1].yields = {0, 1};
  EXPECT_NE(plan_hash(plan), plan_hash(changed));
  std::swap(changed[5], changed[6]);
  EXPECT_NE(plan_hash(plan), plan_hash(changed));
}

TEST(Op, MalformedTextIsRefusedWithItsLine) {
  for (const char* text :
       {"FORWRD block=1 mb=0 tape=full yields={}",
        "FORWARD block=1 mb=0 tape=full",
        "FORWARD block=1 block=1 mb=0 tape=full yields={}",
        "FORWARD block=-1 mb=0 tape=full yields={}",
        "FORWARD block=1 mb=0 tape=thick yields={}",
        "FORWARD block=1 mb=0 tape=full yields={64}",
        "FORWARD block=1 mb=0 tape=full yields={0,0}",
        "FORWARD block=1 mb=0 tape=full yields=0",
        "LOAD mb=99999999999",
        "LOAD mb=",
        "LOAD mb",
        "LOAD",
        "LOAD  mb=0",
        "AGREE unit=1",
        "REDUCE unit=1 mbs=[0,4] axis=shard",
        "REDUCE unit=1 mbs=[0) axis=shard",
        "DROP slot=tape(3) tier=device",
        "DROP slot=tape(loader,mb=0) tier=device",
        "DROP slot=value(3,mb=0) tier=device",
        "DROP slot=tape(3,mb=0) tier=tape",
        "SEND slot=value(3,0,mb=0) peer=x"}) {
    SCOPED_TRACE(text);
    try {
      parse_plan(std::string("COMMIT\n") + text);
      ADD_FAILURE() << "accepted";
    } catch (const UserError& error) {
      EXPECT_THAT(error.what(), ::testing::HasSubstr("line 2 of the plan"));
    }
  }
}

} // namespace
} // namespace palimpsest
