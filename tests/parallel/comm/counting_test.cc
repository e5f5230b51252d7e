#include <palimpsest/parallel/comm/counting.h>

#include <palimpsest/parallel/comm/in_process.h>
#include <palimpsest/tests/parallel/comm/conformance.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

// Every operation once on three ranks, with tensors of 30 fp32 numbers: 120 bytes.
void everything(Communicator& world) {
  const at::Tensor whole = at::ones({30});
  const at::Tensor mine = at::zeros({10});
  world.all_gather(mine, whole).wait();
  world.reduce_scatter(whole, mine).wait();
  world.all_reduce(whole, ReduceOp::kSum).wait();
  world.broadcast(whole, 1).wait();
  world.barrier().wait();
  const int next = (world.rank() + 1) % 3;
  const int previous = (world.rank() + 2) % 3;
  const at::Tensor received = at::zeros({30});
  Ticket sending = world.send(whole, next);
  world.receive(received, previous).wait();
  sending.wait();
  EXPECT_TRUE(received.equal(whole)); // the decorated engine did its work
}

TEST(Counting, EveryOperationCountsWhatARankMustSend) {
  std::vector<std::unique_ptr<Communicator>> world;
  std::vector<std::shared_ptr<Traffic>> counts;
  for (auto& engine : in_process_world(3)) {
    counts.push_back(std::make_shared<Traffic>());
    world.push_back(std::make_unique<CountingCommunicator>(std::move(engine), counts.back()));
  }
  run_threads(std::move(world), [](Communicator& ranks) {
    EXPECT_EQ(ranks.size(), 3);
    everything(ranks);
    const auto half = ranks.split(0, -ranks.rank(), "turned round"); // counts on
    EXPECT_EQ(half->rank(), 2 - ranks.rank());
    half->all_gather(at::ones({2}), at::zeros({6})).wait();
  });
  for (const auto& traffic : counts) {
    using enum CommKind;
    EXPECT_EQ((*traffic)[kAllGather], (TrafficCount{2, 80 + 16}));
    EXPECT_EQ((*traffic)[kReduceScatter], (TrafficCount{1, 80}));
    EXPECT_EQ((*traffic)[kAllReduce], (TrafficCount{1, 160}));
    EXPECT_EQ((*traffic)[kBroadcast], (TrafficCount{1, 120}));
    EXPECT_EQ((*traffic)[kSend], (TrafficCount{1, 120}));
    EXPECT_EQ((*traffic)[kReceive], (TrafficCount{1, 120}));
    EXPECT_EQ((*traffic)[kBarrier], (TrafficCount{1, 0}));
    EXPECT_EQ(traffic->bytes(), 96 + 80 + 160 + 3 * 120);
  }
  EXPECT_EQ(to_text(CommKind::kReduceScatter), "reduce_scatter");
}

} // namespace
} // namespace palimpsest
