#pragma once

// NCCL, through c10d, for tensors on CUDA devices.
//
//   engine = nccl_engine(std::move(engine), store, rank, size, local_rank);
//   // tensors on the CPU go through the engine that was there

#include <palimpsest/parallel/comm/engine.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

namespace palimpsest {

/// Whether this build has NCCL.
bool has_nccl();

/// The same group with NCCL for CUDA tensors and `cpu` for all others. `store` is the group's alone;
/// `device`: the CUDA device of this rank's tensors.
/// UserError in a build without NCCL.
std::shared_ptr<Engine> nccl_engine(
    std::shared_ptr<Engine> cpu,
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int device);

} // namespace palimpsest
