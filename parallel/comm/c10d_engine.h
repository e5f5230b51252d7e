#pragma once

// An engine through a c10d backend of LibTorch: Gloo or NCCL.

#include <palimpsest/parallel/comm/engine.h>

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <memory>

namespace palimpsest {

class C10dEngine : public Engine {
 public:
  explicit C10dEngine(c10::intrusive_ptr<c10d::Backend> backend) : backend_(std::move(backend)) {}

  bool progresses_alone() const override {
    return true;
  }
  std::unique_ptr<Request> all_gather(const at::Tensor& mine, const at::Tensor& whole) override;
  std::unique_ptr<Request> all_to_all(const at::Tensor& whole, const at::Tensor& parts) override;
  std::unique_ptr<Request> all_reduce(const at::Tensor& tensor, ReduceOp op) override;
  std::unique_ptr<Request> broadcast(const at::Tensor& tensor, int root) override;
  std::unique_ptr<Request> send(const at::Tensor& tensor, int peer) override;
  std::unique_ptr<Request> receive(const at::Tensor& tensor, int peer) override;
  std::unique_ptr<Request> barrier() override;

 protected:
  virtual std::unique_ptr<Request> collective(c10::intrusive_ptr<c10d::Work> work) = 0;
  virtual std::unique_ptr<Request> transfer(c10::intrusive_ptr<c10d::Work> work) = 0;

  c10::intrusive_ptr<c10d::Backend> backend_;
};

/// The library's own limit of an operation: ours are watched by EngineCommunicator, and may be
/// lifted while an operation is under way.
inline constexpr std::chrono::milliseconds kNeverTimeout = std::chrono::hours(24 * 365);

} // namespace palimpsest
