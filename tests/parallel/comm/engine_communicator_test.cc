#include <palimpsest/parallel/comm/engine_communicator.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include <gtest/gtest.h>

#include <bit>

namespace palimpsest {
namespace {

/// Of two ranks, of which the other one does nothing: whatever is asked for is done at once.
class DoneAtOnce final : public Engine {
 public:
  std::string name() const override {
    return "none";
  }
  bool progresses_alone() const override {
    return true;
  }
  std::unique_ptr<Request> all_gather(const at::Tensor&, const at::Tensor&) override {
    return done();
  }
  std::unique_ptr<Request> all_to_all(const at::Tensor&, const at::Tensor& parts) override {
    parts.fill_(0x3f);
    return done();
  }
  std::unique_ptr<Request> all_reduce(const at::Tensor&, ReduceOp) override {
    return done();
  }
  std::unique_ptr<Request> broadcast(const at::Tensor&, int) override {
    return done();
  }
  std::unique_ptr<Request> send(const at::Tensor&, int) override {
    return done();
  }
  std::unique_ptr<Request> receive(const at::Tensor&, int) override {
    return done();
  }
  std::unique_ptr<Request> barrier() override {
    return done();
  }
  std::shared_ptr<Engine> split(const std::vector<int>&, int, const std::string&) override {
    return nullptr;
  }
  void give_up() noexcept override {}

 private:
  static std::unique_ptr<Request> done() {
    class Done final : public Request {
      bool poll() override {
        return true;
      }
    };
    return std::make_unique<Done>();
  }
};

std::unique_ptr<Communicator> world_of_two() {
  return engine_communicator(
      std::make_shared<DoneAtOnce>(),
      {.name = "world", .ranks = {0, 1}},
      {},
      std::make_shared<Heartbeat>(0, std::make_shared<RankStatus>()));
}

// The sum is added after the transfer, on this rank alone; here its target cannot be written.
TEST(EngineCommunicator, AFailedSumIsAnErrorOfTheWaitWhoeverAskedBefore) {
  const auto world = world_of_two();
  for (const bool ask_before : {false, true}) {
    const at::Tensor sum = at::ones({2});
    Ticket ticket = world->reduce_scatter(at::ones({4}), sum);
    sum.storage().unsafeGetStorageImpl()->set_throw_on_mutable_data_ptr();
    if (ask_before) {
      EXPECT_TRUE(ticket.done());
      EXPECT_TRUE(ticket.done());
    }
    EXPECT_ANY_THROW(ticket.wait());
  }
}

TEST(EngineCommunicator, ASumIsAddedOnceHoweverOftenOneAsks) {
  const auto world = world_of_two();
  const at::Tensor sum = at::ones({2});
  Ticket ticket = world->reduce_scatter(at::ones({4}), sum);
  EXPECT_TRUE(ticket.done());
  EXPECT_TRUE(ticket.done());
  ticket.wait();
  const auto received = std::bit_cast<float>(0x3f3f3f3f);
  EXPECT_FLOAT_EQ(sum.sum().item<float>(), 2 * (1 + received + received));
}

} // namespace
} // namespace palimpsest
