#include <palimpsest/parallel/comm/nccl.h>

#include <palimpsest/parallel/comm/c10d_engine.h>

#define USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include <utility>

namespace palimpsest {

namespace {

using Backend = c10d::ProcessGroupNCCL;

/// Done when the device has done it: so a peer that does not come is seen, at the price of not
/// queueing work behind an operation under way.
class NcclRequest final : public Request {
 public:
  explicit NcclRequest(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool poll() override {
    if (!work_->isCompleted()) {
      return false;
    }
    work_->wait();
    return true;
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

class NcclOperations final : public C10dEngine {
 public:
  explicit NcclOperations(c10::intrusive_ptr<Backend> backend)
      : C10dEngine(backend), nccl_(std::move(backend)) {}
  std::string name() const override {
    return "nccl";
  }
  /// The engine by device makes its own.
  std::shared_ptr<Engine> split(
      const std::vector<int>& /*members*/,
      int /*place*/,
      const std::string& /*name*/) override {
    return nullptr;
  }
  void give_up() noexcept override {
    try {
      nccl_->abort();
    } catch (...) { // NOLINT(bugprone-empty-catch): the device's state is of no more use
    }
  }

 protected:
  std::unique_ptr<Request> collective(c10::intrusive_ptr<c10d::Work> work) override {
    return std::make_unique<NcclRequest>(std::move(work));
  }
  std::unique_ptr<Request> transfer(c10::intrusive_ptr<c10d::Work> work) override {
    return std::make_unique<NcclRequest>(std::move(work));
  }

 private:
  c10::intrusive_ptr<Backend> nccl_;
};

class ByDevice final : public Engine {
 public:
  ByDevice(
      std::shared_ptr<Engine> cpu,
      std::unique_ptr<Engine> cuda,
      c10::intrusive_ptr<c10d::Store> store,
      int device)
      : cpu_(std::move(cpu)), cuda_(std::move(cuda)), store_(std::move(store)), device_(device) {}

  std::string name() const override {
    return "nccl and " + cpu_->name();
  }
  bool progresses_alone() const override {
    return cpu_->progresses_alone();
  }
  std::unique_ptr<Request> all_gather(const at::Tensor& mine, const at::Tensor& whole) override {
    return of(whole).all_gather(mine, whole);
  }
  std::unique_ptr<Request> all_to_all(const at::Tensor& whole, const at::Tensor& parts) override {
    return of(whole).all_to_all(whole, parts);
  }
  std::unique_ptr<Request> all_reduce(const at::Tensor& tensor, ReduceOp op) override {
    return of(tensor).all_reduce(tensor, op);
  }
  std::unique_ptr<Request> broadcast(const at::Tensor& tensor, int root) override {
    return of(tensor).broadcast(tensor, root);
  }
  std::unique_ptr<Request> send(const at::Tensor& tensor, int peer) override {
    return of(tensor).send(tensor, peer);
  }
  std::unique_ptr<Request> receive(const at::Tensor& tensor, int peer) override {
    return of(tensor).receive(tensor, peer);
  }
  std::unique_ptr<Request> barrier() override {
    return cpu_->barrier();
  }
  std::shared_ptr<Engine> split(const std::vector<int>& members, int place, const std::string& name)
      override {
    return nccl_engine(
        cpu_->split(members, place, name),
        c10::make_intrusive<c10d::PrefixStore>(name, store_),
        place,
        static_cast<int>(members.size()),
        device_);
  }
  void note_failure() noexcept override {
    cpu_->note_failure();
  }
  void give_up() noexcept override {
    cuda_->give_up();
    cpu_->give_up();
  }

 private:
  Engine& of(const at::Tensor& tensor) {
    return tensor.is_cuda() ? *cuda_ : *cpu_;
  }

  std::shared_ptr<Engine> cpu_;
  std::unique_ptr<Engine> cuda_;
  c10::intrusive_ptr<c10d::Store> store_;
  int device_;
};

} // namespace

bool has_nccl() {
  return true;
}

std::shared_ptr<Engine> nccl_engine(
    std::shared_ptr<Engine> cpu,
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    int device) {
  const auto options = Backend::Options::create();
  options->timeout = kNeverTimeout;
  auto backend = c10::make_intrusive<Backend>(store, rank, size, options);
  backend->setBoundDeviceId(at::Device(at::kCUDA, static_cast<at::DeviceIndex>(device)));
  return std::make_shared<ByDevice>(
      std::move(cpu), std::make_unique<NcclOperations>(std::move(backend)), store, device);
}

} // namespace palimpsest
