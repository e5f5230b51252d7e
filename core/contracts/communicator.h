#pragma once

// A group of ranks that talk to each other.
//
//   std::unique_ptr<Communicator> shard = world.split(mesh.pipeline_rank(rank), rank, "shard");
//   Ticket arriving = shard->all_gather(mine, whole);
//   ...                                    // computing goes on meanwhile
//   arriving.wait();
//
// All ranks of a group issue the same operations in the same order. Tensors are contiguous, of one
// dtype and size on all ranks; an action keeps its tensors alive, and nobody may write its operands
// or read its results before it is done. An operation that runs out of memory when it is issued has
// not begun: it may be issued again. Waiting throws EnvironmentError naming operation, group
// and rank where a peer died or did not come in time.

#include <palimpsest/core/contracts/ticket.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>

namespace palimpsest {

enum class ReduceOp : uint8_t { kSum, kMax, kMin };

class Communicator {
 public:
  virtual ~Communicator() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// For messages: "mpi, world of 4".
  virtual std::string description() const = 0;

  /// [n] of each rank, in rank order, into everybody's whole [size n]. `mine` may be this rank's
  /// part of `whole`.
  virtual Ticket all_gather(const at::Tensor& mine, const at::Tensor& whole) = 0;

  /// Adds part r of everybody's whole [size n] onto rank r's mine [n], fp32 or bf16: in fp32 and in
  /// rank order, ((mine + part of rank 0) + part of rank 1) + ..., whatever the dtype of `whole`;
  /// a bf16 `mine` is rounded to nearest after each part, as if they came one by one.
  /// Receives a second whole meanwhile, where the group has more than one rank.
  virtual Ticket reduce_scatter(const at::Tensor& whole, const at::Tensor& mine) = 0;

  /// In place. The same bits on all ranks; the order of a sum is the engine's. NaN may get lost in
  /// kMax and kMin.
  virtual Ticket all_reduce(const at::Tensor& tensor, ReduceOp op) = 0;

  virtual Ticket broadcast(const at::Tensor& tensor, int root) = 0;

  /// A pair of ranks is one ordered channel per direction.
  virtual Ticket send(const at::Tensor& tensor, int peer) = 0;
  virtual Ticket receive(const at::Tensor& tensor, int peer) = 0;

  virtual Ticket barrier() = 0;

  /// Collective: ranks of equal `color` form a group, ordered by `key`. `name` is for messages.
  virtual std::unique_ptr<Communicator> split(int color, int key, const std::string& name) = 0;

  /// Ends what is outstanding, here and, as soon as they notice, at the peers: waiting throws. Safe
  /// from any thread.
  virtual void abort(const std::string& reason) noexcept = 0;
};

} // namespace palimpsest
