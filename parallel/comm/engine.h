#pragma once

// What one communication library does for one group of ranks; EngineCommunicator makes a
// Communicator of it.
//
//   std::unique_ptr<Request> request = engine.all_gather(mine, whole);
//   while (!request->poll()) { ... }
//
// An engine is asked only for what needs it: groups of two ranks and more, operands that were
// checked and are not empty.

#include <palimpsest/core/contracts/communicator.h>

#include <c10/util/Exception.h>

#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace palimpsest {

/// One operation in flight; keeps its tensors alive. A request whose world failed is never
/// destroyed: the library may still write to its tensors.
class Request {
 public:
  virtual ~Request() = default;
  /// Whether it is done. Throws what the library says of a failure.
  virtual bool poll() = 0;
};

class Engine {
 public:
  virtual ~Engine() = default;

  /// "mpi", "gloo", "nccl".
  virtual std::string name() const = 0;
  /// Whether operations get on while nobody polls.
  virtual bool progresses_alone() const = 0;

  virtual std::unique_ptr<Request> all_gather(const at::Tensor& mine, const at::Tensor& whole) = 0;
  /// Part r of everybody's `whole` into rank r's `parts`, in rank order.
  virtual std::unique_ptr<Request> all_to_all(const at::Tensor& whole, const at::Tensor& parts) = 0;
  virtual std::unique_ptr<Request> all_reduce(const at::Tensor& tensor, ReduceOp op) = 0;
  virtual std::unique_ptr<Request> broadcast(const at::Tensor& tensor, int root) = 0;
  virtual std::unique_ptr<Request> send(const at::Tensor& tensor, int peer) = 0;
  virtual std::unique_ptr<Request> receive(const at::Tensor& tensor, int peer) = 0;
  virtual std::unique_ptr<Request> barrier() = 0;

  /// The engine of a sub-group; called by its members at the same time. `members`: ranks of this
  /// group, in the new order, this one's at `place`; `name`: unique in the world, alike on all.
  virtual std::shared_ptr<Engine> split(
      const std::vector<int>& members,
      int place,
      const std::string& name) = 0;

  /// The world has failed, or this rank is about to end it; any thread.
  virtual void note_failure() noexcept {}
  /// The world has failed: lets the peers notice as soon as the library can. Nothing is asked of
  /// the engine afterwards, and its destructor waits for nothing.
  virtual void give_up() noexcept = 0;
};

/// What a library's error says, without a stack.
inline std::string message_of(const std::exception& error) {
  const auto* const torch_error = dynamic_cast<const c10::Error*>(&error);
  return torch_error == nullptr ? error.what() : torch_error->what_without_backtrace();
}

/// A contiguous tensor as its bytes, of the same storage.
inline at::Tensor bytes_of(const at::Tensor& tensor) {
  return tensor.view({-1}).view(at::kByte);
}

} // namespace palimpsest
