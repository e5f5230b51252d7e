#include <palimpsest/parallel/comm/gloo.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/parallel/comm/c10d_engine.h>

#define USE_C10D_GLOO
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <atomic>
#include <cstdlib>
#include <exception>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest {

namespace {

/// Opens what is needed where operations may take longer than they did to connect, or hang. The
/// contexts' type information is hidden in LibTorch: a sanitizer cannot recognise them.
class Backend final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;
  [[gnu::no_sanitize("vptr")]] void wait_for_ever() {
    for (const std::shared_ptr<gloo::Context>& context : contexts_) {
      context->setTimeout(kNeverTimeout);
    }
  }
  [[gnu::no_sanitize("vptr")]] void close() {
    for (const std::shared_ptr<gloo::Context>& context : contexts_) {
      context->closeConnections();
    }
  }
};

class Collective final : public Request {
 public:
  explicit Collective(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  bool poll() override {
    if (!work_->isCompleted()) {
      return false;
    }
    if (work_->exception()) {
      std::rethrow_exception(work_->exception());
    }
    // The backend's thread lets go of the work, and so of its buffers, only afterwards.
    return work_.use_count() == 1;
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
};

/// Whether transfers are done can only be learnt by waiting for them, so a thread does.
class Transfers final : public Request {
 public:
  explicit Transfers(std::vector<c10::intrusive_ptr<c10d::Work>> works) {
    std::thread([state = state_, works = std::move(works)]() mutable {
      try {
        for (const c10::intrusive_ptr<c10d::Work>& work : works) {
          work->wait(kNeverTimeout);
        }
      } catch (const std::exception&) {
        state->error = std::current_exception();
      }
      works.clear(); // they are of the backend, which may go once all is done
      state->done = true;
    }).detach();
  }
  bool poll() override {
    if (!state_->done) {
      return false;
    }
    if (state_->error) {
      std::rethrow_exception(state_->error);
    }
    return true;
  }

 private:
  struct State {
    std::atomic<bool> done = false;
    std::exception_ptr error;
  };
  std::shared_ptr<State> state_ = std::make_shared<State>();
};

std::shared_ptr<gloo::transport::Device> make_device(const std::string& address) {
  if (!address.empty()) {
    return Backend::createDeviceForHostname(address);
  }
  if (const char* interface = std::getenv("GLOO_SOCKET_IFNAME")) {
    return Backend::createDeviceForInterface(interface);
  }
  return Backend::createDefaultDevice();
}

/// LibTorch's recorder of collectives is one for the process and not safe where ranks are threads.
void disable_flight_recorder() {
  static const bool kDone = [] {
    ::setenv("TORCH_FR_BUFFER_SIZE", "0", /*replace=*/0);
    return true;
  }();
  static_cast<void>(kDone);
}

class GlooEngine final : public C10dEngine {
 public:
  GlooEngine(
      const c10::intrusive_ptr<c10d::Store>& store,
      c10::intrusive_ptr<Backend> backend,
      GlooSettings settings)
      : C10dEngine(backend), store_(store), gloo_(std::move(backend)),
        settings_(std::move(settings)) {}

  std::string name() const override {
    return "gloo";
  }

  /// From each peer to its place: c10d's own gathers into a second whole first.
  std::unique_ptr<Request> all_gather(const at::Tensor& mine, const at::Tensor& whole) override {
    constexpr int kTag = 1; // apart from sends and receives
    const int rank = backend_->getRank();
    const int size = backend_->getSize();
    const int64_t n = mine.numel();
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    for (int step = 1; step < size; ++step) {
      const int from = (rank + size - step) % size;
      std::vector<at::Tensor> arriving{whole.narrow(0, from * n, n)};
      std::vector<at::Tensor> leaving{mine};
      works.push_back(backend_->recv(arriving, from, kTag));
      works.push_back(backend_->send(leaving, (rank + step) % size, kTag));
    }
    auto request = std::make_unique<Transfers>(std::move(works));
    const at::Tensor place = whole.narrow(0, rank * n, n);
    if (place.const_data_ptr() != mine.const_data_ptr()) {
      place.copy_(mine);
    }
    return request;
  }

  std::shared_ptr<Engine> split(const std::vector<int>& members, int place, const std::string& name)
      override {
    return gloo_engine(
        c10::make_intrusive<c10d::PrefixStore>(name, store_),
        place,
        static_cast<int>(members.size()),
        settings_);
  }

  void give_up() noexcept override {
    if (gloo_ == nullptr) {
      return;
    }
    try {
      gloo_->close();
    } catch (...) { // NOLINT(bugprone-empty-catch): the connections end with the process
    }
    // Its threads may wait for ever, and its destructor for them.
    static_cast<void>(gloo_.release());
    static_cast<void>(backend_.release());
  }

 protected:
  std::unique_ptr<Request> collective(c10::intrusive_ptr<c10d::Work> work) override {
    return std::make_unique<Collective>(std::move(work));
  }
  std::unique_ptr<Request> transfer(c10::intrusive_ptr<c10d::Work> work) override {
    return std::make_unique<Transfers>(std::vector{std::move(work)});
  }

 private:
  c10::intrusive_ptr<c10d::Store> store_;
  c10::intrusive_ptr<Backend> gloo_;
  GlooSettings settings_;
};

} // namespace

std::shared_ptr<Engine> gloo_engine(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const GlooSettings& settings) {
  disable_flight_recorder();
  try {
    const auto options = Backend::Options::create(settings.startup_timeout);
    options->devices.push_back(make_device(settings.address));
    options->threads = 2;
    auto backend = c10::make_intrusive<Backend>(store, rank, size, options);
    backend->wait_for_ever();
    return std::make_shared<GlooEngine>(store, std::move(backend), settings);
  } catch (const std::exception& error) {
    throw EnvironmentError(
        "rank {} of a group of {} could not connect to the others within {} s; "
        "parallel.startup_timeout sets how long it tries\ngloo says: {}",
        rank,
        size,
        std::chrono::duration<double>(settings.startup_timeout).count(),
        message_of(error));
  }
}

} // namespace palimpsest
