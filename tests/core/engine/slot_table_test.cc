#include <palimpsest/core/engine/slot_table.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/allocator.h>

#include <ATen/ops/full.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::ThrowsMessage;

/// Notes which gradients are open.
class NotingStore final : public ParamStore {
 public:
  Ticket gather(int) override {
    return {};
  }
  void release(int) override {}
  void open(const Slot& slot) override {
    opened.push_back(slot.owner);
  }
  void close(const Slot& slot) override {
    closed.push_back(slot.owner);
  }
  std::vector<at::Tensor*> tensors(const Slot&) override {
    return {&state};
  }
  Ticket reduce(int, MicroBatchRange, ReduceAxis) override {
    return {};
  }
  Ticket publish(int) override {
    return {};
  }
  ParamShard& shard(int) override {
    return shard_;
  }
  std::vector<int> opened;
  std::vector<int> closed;
  at::Tensor state;

 private:
  ParamShard shard_;
};

class NotingSlots final : public SlotStore {
 public:
  Ticket stash(const Slot&, TierId, std::vector<at::Tensor*>) override {
    return {};
  }
  Ticket fetch(const Slot&, TierId, std::vector<at::Tensor*>) override {
    return {};
  }
  void drop(const Slot& slot, TierId tier) override {
    dropped.emplace_back(slot, tier);
  }
  std::vector<std::pair<Slot, TierId>> dropped;
};

/// In flight until somebody waits.
class Pending final : public Ticket::Action {
 public:
  Pending(int& waits, int& polls) : waits_(waits), polls_(polls) {}
  bool done() override {
    ++polls_;
    return false;
  }
  void wait() override {
    ++waits_;
  }

 private:
  int& waits_;
  int& polls_;
};

class PlainTape final : public Tape {
 public:
  explicit PlainTape(at::Tensor owned) : owned_(std::move(owned)) {}
  Tensors backward(TensorSpan, TensorSpan, BackwardPart, const BlockContext&) override {
    return {};
  }
  std::vector<at::Tensor*> tensors() override {
    return {&owned_, &undefined_};
  }

 private:
  at::Tensor owned_;
  at::Tensor undefined_;
};

class SlotTableTest : public ::testing::Test {
 protected:
  SlotTableTest() {
    install_cpu_allocator();
    here_.emplace(memory_);
  }
  Ticket pending() {
    return Ticket(std::make_unique<Pending>(waits_, polls_));
  }
  void prepare(const Slot& slot, Use use) {
    table_.prepare({{{slot}, use}});
  }
  int64_t activations() const {
    return memory_.usage(Category::kActivations).live;
  }

  const Slot value_{SlotKind::kValue, 3, 0, 1};
  const Slot tape_{SlotKind::kTape, 3, 0, 1};
  const Slot gradient_{SlotKind::kGradBuffer, 2};
  MemoryContext memory_{"rank 0"};
  std::optional<ScopedContext> here_;
  NotingStore store_;
  NotingSlots slots_;
  int waits_ = 0;
  int polls_ = 0;
  SlotTable table_{store_};
};

// A step that throws between GATHER and RELEASE.
TEST(SlotTable, WhatAFailedStepLeftGatheredIsReleased) {
  NotingStore store;
  {
    SlotTable table(store);
    for (const int unit : {4, 5}) {
      table.prepare({{{{SlotKind::kParam, unit}}, Use::kCreates}});
    }
    table.prepare({{{{SlotKind::kParam, 4}}, Use::kFrees}}); // by the store itself
  }
  EXPECT_THAT(store.closed, ElementsAre(5));
}

TEST_F(SlotTableTest, WhatIsInFlightMakesProgressWhenPolled) {
  table_.in_flight(pending(), {{{value_}, Use::kReads}, {{gradient_}, Use::kChanges}});
  polls_ = 0;
  table_.poll();
  EXPECT_EQ(polls_, 2); // once for each operand
  table_.await({gradient_});
  table_.poll();
  EXPECT_EQ(polls_, 2); // nobody polls what was waited for
  EXPECT_EQ(waits_, 1);
}

TEST_F(SlotTableTest, AllThatIsInFlightIsWaitedForOnRequestOnce) {
  table_.in_flight(pending(), {{{value_}, Use::kReads}, {{gradient_}, Use::kChanges}});
  table_.in_flight(pending(), {{{value_}, Use::kReads}});
  EXPECT_TRUE(table_.finish());
  EXPECT_EQ(waits_, 2);
  EXPECT_FALSE(table_.finish());
  prepare(value_, Use::kFrees);
  EXPECT_EQ(waits_, 2);
}

TEST_F(SlotTableTest, AGradientBeginsWithItsFirstAdditionAndEndsWithItsDrop) {
  prepare(gradient_, Use::kReads);
  EXPECT_THAT(store_.opened, IsEmpty());
  prepare(gradient_, Use::kAdds);
  prepare(gradient_, Use::kAdds);
  EXPECT_THAT(store_.opened, ElementsAre(2));
  table_.drop(gradient_, TierId::kDevice, nullptr);
  EXPECT_THAT(store_.closed, ElementsAre(2));
  prepare(gradient_, Use::kAdds); // the next step's
  EXPECT_THAT(store_.opened, ElementsAre(2, 2));
}

TEST_F(SlotTableTest, AFailedStepsGradientsAreClosed) {
  {
    SlotTable table(store_);
    table.prepare({{{gradient_}, Use::kAdds}});
    table.in_flight(pending(), {{{gradient_}, Use::kReads}});
    EXPECT_EQ(waits_, 0);
  }
  EXPECT_EQ(waits_, 1); // a buffer in flight is not freed
  EXPECT_THAT(store_.closed, ElementsAre(2));
}

TEST_F(SlotTableTest, AnArrivalIsWaitedForOnceAndOnlyByItsUser) {
  const Slot other{SlotKind::kValue, 4, 0, 1};
  table_.in_flight(pending(), {{{value_}, Use::kCreates}});
  prepare(other, Use::kReads);
  EXPECT_EQ(waits_, 0);
  prepare(value_, Use::kReads);
  EXPECT_EQ(waits_, 1);
  prepare(value_, Use::kReads);
  EXPECT_EQ(waits_, 1);
}

TEST_F(SlotTableTest, ReadersAreWaitedForOnlyBeforeAChangeOrAnEnd) {
  for (const Use last : {Use::kChanges, Use::kFrees}) {
    waits_ = 0;
    table_.in_flight(pending(), {{{value_}, Use::kReads}});
    table_.in_flight(pending(), {{{value_}, Use::kReads}});
    prepare(value_, Use::kReads);
    EXPECT_EQ(waits_, 0);
    prepare(value_, last);
    EXPECT_EQ(waits_, 2);
  }
}

TEST_F(SlotTableTest, GradientsOfValuesAddUp) {
  const Slot slot{SlotKind::kGrad, 3, 0, 1};
  table_.add(slot, at::full({2}, 1.5F));
  table_.add(slot, at::full({2}, 2.0F));
  EXPECT_EQ(table_.tensor(slot)[1].item<float>(), 3.5F);
}

TEST_F(SlotTableTest, WhatItKeepsCountsAsActivationsUntilItsDrop) {
  {
    const ScopedCategory scratch(memory_, Category::kWorkspace);
    table_.keep(value_, at::full({8}, 1.0F));
    table_.keep(tape_, std::make_unique<PlainTape>(at::full({4}, 1.0F)));
  }
  EXPECT_EQ(activations(), 32 + 16);
  EXPECT_EQ(memory_.total().live, 32 + 16);
  table_.drop(value_, TierId::kDevice, nullptr);
  EXPECT_EQ(activations(), 16);
  table_.take_tape(tape_); // spent: its storages go with it, the slot later
  EXPECT_EQ(activations(), 0);
  table_.drop(tape_, TierId::kDevice, nullptr);
}

TEST_F(SlotTableTest, AStashedSlotKeepsAShellToBeFetchedInto) {
  table_.keep(value_, at::full({8}, 1.0F));
  table_.tensors(value_);
  table_.drop(value_, TierId::kDevice, &slots_);
  EXPECT_EQ(activations(), 0);
  ASSERT_EQ(table_.tensors(value_).size(), 1U);
  *table_.tensors(value_).front() = at::full({8}, 2.0F);
  EXPECT_EQ(table_.tensor(value_)[0].item<float>(), 2);
  table_.drop(value_, TierId::kHost, &slots_);
  EXPECT_THAT(slots_.dropped, ElementsAre(std::pair(value_, TierId::kHost)));
  table_.drop(value_, TierId::kDevice, &slots_); // without a copy elsewhere this is its end
  EXPECT_THROW(table_.tensor(value_), InternalError);
}

/// Lists only what it has, as the models' tapes do.
class ForgetfulTape final : public Tape {
 public:
  explicit ForgetfulTape(at::Tensor owned) : owned_(std::move(owned)) {}
  Tensors backward(TensorSpan, TensorSpan, BackwardPart, const BlockContext&) override {
    return {owned_};
  }
  std::vector<at::Tensor*> tensors() override {
    return owned_.defined() ? std::vector<at::Tensor*>{&owned_} : std::vector<at::Tensor*>{};
  }

 private:
  at::Tensor owned_;
};

TEST_F(SlotTableTest, AStashedTapeIsFilledAgainThoughItForgotWhatItHad) {
  table_.keep(tape_, std::make_unique<ForgetfulTape>(at::full({8}, 1.0F)));
  ASSERT_EQ(table_.tensors(tape_).size(), 1U);
  table_.drop(tape_, TierId::kDevice, &slots_);
  EXPECT_EQ(activations(), 0);
  ASSERT_EQ(table_.tensors(tape_).size(), 1U);
  *table_.tensors(tape_).front() = at::full({8}, 2.0F);
  const Tensors back = table_.take_tape(tape_)->backward({}, {}, BackwardPart::kBoth, {});
  EXPECT_EQ(back[0][7].item<float>(), 2);
}

TEST_F(SlotTableTest, AWriteToAnotherTierIsNotWaitedForByReadersHere) {
  const Place away{value_, TierId::kHost};
  table_.keep(value_, at::full({8}, 1.0F));
  table_.in_flight(pending(), {{{value_}, Use::kReads}, {away, Use::kCreates}});
  prepare(value_, Use::kReads);
  EXPECT_EQ(waits_, 0);
  table_.prepare({{away, Use::kReads}, {{value_}, Use::kCreates}}); // a FETCH
  EXPECT_EQ(waits_, 1);
}

TEST_F(SlotTableTest, ReceivedPartsOfAGradientAddUpWhenItIsUsed) {
  const Slot slot{SlotKind::kGrad, 3, 0, 1};
  table_.receive(slot) = at::full({2}, 1.5F);
  table_.receive(slot) = at::full({2}, 2.0F);
  table_.add(slot, at::full({2}, 4.0F));
  prepare(slot, Use::kReads);
  EXPECT_EQ(table_.tensor(slot)[1].item<float>(), 7.5F);
}

TEST_F(SlotTableTest, UnitsSlotsAreTheStores) {
  const std::vector<at::Tensor*>& states = table_.tensors({SlotKind::kOptimizerState, 2});
  EXPECT_THAT(states, ElementsAre(&store_.state));
}

TEST_F(SlotTableTest, WrongUseNamesTheSlot) {
  EXPECT_THAT(
      [&] { table_.tensor(value_); },
      ThrowsMessage<InternalError>(HasSubstr("value(3,0,mb=1) is used while not live")));
  EXPECT_THAT(
      [&] { table_.keep(value_, at::Tensor()); },
      ThrowsMessage<InternalError>(HasSubstr("value(3,0,mb=1) was not computed")));
  EXPECT_THAT(
      [&] { table_.drop(value_, TierId::kDisk, nullptr); },
      ThrowsMessage<InternalError>(HasSubstr("value(3,0,mb=1) was never stashed")));
  table_.keep(tape_, std::make_unique<PlainTape>(at::Tensor()));
  table_.take_tape(tape_);
  const auto twice = ThrowsMessage<InternalError>(HasSubstr("tape(3,mb=1) is used twice"));
  EXPECT_THAT([&] { table_.take_tape(tape_); }, twice);
  EXPECT_THAT([&] { table_.tape(tape_); }, twice);
}

} // namespace
} // namespace palimpsest
