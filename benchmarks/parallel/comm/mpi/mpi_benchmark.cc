// Gathering and scattering 64 MiB over two ranks that talk by MPI, beside MPI's own blocking calls
// in the same run:
//
//   mpirun --bind-to none --oversubscribe -n 2 build/bin/bench_parallel_comm_mpi
//
// Iterations are fixed, since both ranks must call alike. Each rank prints its own times.

#include <palimpsest/benchmarks/parallel/comm/comm_benchmark.h>
#include <palimpsest/parallel/comm/engine_communicator.h>
#include <palimpsest/parallel/comm/mpi.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <benchmark/benchmark.h>
#include <mpi.h>

#include <cstdlib>
#include <functional>

namespace palimpsest {
namespace {

using Call = std::function<void(Communicator&, const at::Tensor& mine, const at::Tensor& whole)>;

void run(benchmark::State& state, const Call& call) {
  if (std::getenv("OMPI_COMM_WORLD_SIZE") == nullptr && std::getenv("PMI_SIZE") == nullptr) {
    state.SkipWithError("start it with mpirun -n 2");
    return;
  }
  const MpiWorld world = mpi_world();
  if (world.size != kRanks) {
    state.SkipWithError("two ranks, please");
    return;
  }
  const auto comm = engine_communicator(
      world.engine,
      {.name = "world", .ranks = {0, 1}, .rank = world.rank},
      {},
      std::make_shared<Heartbeat>(world.rank, std::make_shared<RankStatus>()));
  const at::Tensor mine = at::zeros({kWhole / kRanks});
  const at::Tensor whole = at::ones({kWhole});
  call(*comm, mine, whole); // page faults, connections
  for (auto _ : state) {
    call(*comm, mine, whole);
  }
  report_bytes(state);
}

void BM_MpiOwnAllGather(benchmark::State& state) {
  run(state, [](Communicator&, const at::Tensor& mine, const at::Tensor& whole) {
    const auto count = static_cast<int>(mine.numel());
    MPI_Allgather(
        mine.data_ptr(), count, MPI_FLOAT, whole.data_ptr(), count, MPI_FLOAT, MPI_COMM_WORLD);
  });
}

void BM_AllGather(benchmark::State& state) {
  run(state, [](Communicator& comm, const at::Tensor& mine, const at::Tensor& whole) {
    comm.all_gather(mine, whole).wait();
  });
}

void BM_MpiOwnReduceScatter(benchmark::State& state) {
  run(state, [](Communicator&, const at::Tensor& mine, const at::Tensor& whole) {
    MPI_Reduce_scatter_block(
        whole.data_ptr(),
        mine.data_ptr(),
        static_cast<int>(mine.numel()),
        MPI_FLOAT,
        MPI_SUM,
        MPI_COMM_WORLD);
  });
}

void BM_ReduceScatter(benchmark::State& state) {
  run(state, [](Communicator& comm, const at::Tensor& mine, const at::Tensor& whole) {
    comm.reduce_scatter(whole, mine).wait();
  });
}

BENCHMARK(BM_MpiOwnAllGather)->Apply(alike_on_both_ranks);
BENCHMARK(BM_AllGather)->Apply(alike_on_both_ranks);
BENCHMARK(BM_MpiOwnReduceScatter)->Apply(alike_on_both_ranks);
BENCHMARK(BM_ReduceScatter)->Apply(alike_on_both_ranks);

} // namespace
} // namespace palimpsest
