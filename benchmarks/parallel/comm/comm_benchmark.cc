// Gathering and scattering 64 MiB over two ranks that talk by Gloo, beside Gloo's own calls in the
// same run. Ranks are threads; iterations are fixed, since both must call alike; time is rank 0's.

#include <palimpsest/benchmarks/parallel/comm/comm_benchmark.h>
#include <palimpsest/parallel/comm/engine_communicator.h>
#include <palimpsest/parallel/comm/gloo.h>

#define USE_C10D_GLOO
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <functional>
#include <thread>

namespace palimpsest {
namespace {

/// What one rank calls: (mine, whole).
using Call = std::function<void(const at::Tensor&, const at::Tensor&)>;

struct Operands {
  at::Tensor mine = at::zeros({kWhole / kRanks});
  at::Tensor whole = at::ones({kWhole});
};

/// Rank 0 here and rank 1 as a thread, in step by what they call.
void run_threads(benchmark::State& state, const std::function<Call(int rank)>& make) {
  std::thread peer([&] {
    const Call call = make(1);
    const Operands operands;
    for (int i = 0; i < kIterations + 1; ++i) {
      call(operands.mine, operands.whole);
    }
  });
  const Call call = make(0);
  const Operands operands;
  call(operands.mine, operands.whole); // page faults, connections
  for (auto _ : state) {
    call(operands.mine, operands.whole);
  }
  peer.join();
  report_bytes(state);
}

/// Gloo's own process group, used as its callers do.
c10::intrusive_ptr<c10d::ProcessGroupGloo> own_gloo(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank) {
  const auto options = c10d::ProcessGroupGloo::Options::create(std::chrono::seconds(60));
  options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, kRanks, options);
}

std::shared_ptr<Communicator> communicator(std::shared_ptr<Engine> engine, int rank) {
  return engine_communicator(
      std::move(engine),
      {.name = "world", .ranks = {0, 1}, .rank = rank},
      {},
      std::make_shared<Heartbeat>(rank, std::make_shared<RankStatus>()));
}

void BM_GlooOwnAllGather(benchmark::State& state) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(state, [&](int rank) -> Call {
    return [gloo = own_gloo(store, rank)](at::Tensor mine, at::Tensor whole) {
      gloo->_allgather_base(whole, mine)->wait();
    };
  });
}

void BM_AllGather(benchmark::State& state) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(state, [&](int rank) -> Call {
    return [comm = communicator(gloo_engine(store, rank, kRanks, {.address = "127.0.0.1"}), rank)](
               const at::Tensor& mine, const at::Tensor& whole) {
      comm->all_gather(mine, whole).wait();
    };
  });
}

void BM_GlooOwnReduceScatter(benchmark::State& state) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(state, [&](int rank) -> Call {
    return [gloo = own_gloo(store, rank)](at::Tensor mine, at::Tensor whole) {
      gloo->_reduce_scatter_base(mine, whole)->wait();
    };
  });
}

void BM_ReduceScatter(benchmark::State& state) {
  const auto store = c10::make_intrusive<c10d::HashStore>();
  run_threads(state, [&](int rank) -> Call {
    return [comm = communicator(gloo_engine(store, rank, kRanks, {.address = "127.0.0.1"}), rank)](
               const at::Tensor& mine, const at::Tensor& whole) {
      comm->reduce_scatter(whole, mine).wait();
    };
  });
}

BENCHMARK(BM_GlooOwnAllGather)->Apply(alike_on_both_ranks);
BENCHMARK(BM_AllGather)->Apply(alike_on_both_ranks);
BENCHMARK(BM_GlooOwnReduceScatter)->Apply(alike_on_both_ranks);
BENCHMARK(BM_ReduceScatter)->Apply(alike_on_both_ranks);

} // namespace
} // namespace palimpsest
