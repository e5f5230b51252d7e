#pragma once

// Counts what a rank's communicators do, and does nothing else.
//
//   auto traffic = std::make_shared<Traffic>();
//   CountingCommunicator world(std::move(engine), traffic);      // its groups count into the same
//   ...
//   (*traffic)[CommKind::kAllGather].calls

#include <palimpsest/core/contracts/communicator.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace palimpsest {

enum class CommKind : uint8_t {
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kSend,
  kReceive,
  kBarrier,
};
constexpr int kCommKinds = 7;

/// "all_gather", ...
std::string_view to_text(CommKind kind);

/// Bytes are what a rank has to send at least, however an engine does it: of n ranks' whole tensor
/// (n - 1) / n in an all_gather or a reduce_scatter and twice that in an all_reduce, the tensor in a
/// broadcast or a send. A receive's are its tensor's.
struct TrafficCount {
  int64_t calls = 0;
  int64_t bytes = 0;

  bool operator==(const TrafficCount&) const = default;
};

struct Traffic {
  std::array<TrafficCount, kCommKinds> kinds{};

  TrafficCount& operator[](CommKind kind) {
    return kinds[static_cast<size_t>(kind)];
  }
  const TrafficCount& operator[](CommKind kind) const {
    return kinds[static_cast<size_t>(kind)];
  }
  int64_t bytes() const;
  bool operator==(const Traffic&) const = default;
};

class CountingCommunicator final : public Communicator {
 public:
  CountingCommunicator(std::unique_ptr<Communicator> engine, std::shared_ptr<Traffic> traffic);

  int rank() const override;
  int size() const override;
  std::string description() const override;
  Ticket all_gather(const at::Tensor& mine, const at::Tensor& whole) override;
  Ticket reduce_scatter(const at::Tensor& whole, const at::Tensor& mine) override;
  Ticket all_reduce(const at::Tensor& tensor, ReduceOp op) override;
  Ticket broadcast(const at::Tensor& tensor, int root) override;
  Ticket send(const at::Tensor& tensor, int peer) override;
  Ticket receive(const at::Tensor& tensor, int peer) override;
  Ticket barrier() override;
  std::unique_ptr<Communicator> split(int color, int key, const std::string& name) override;
  void abort(const std::string& reason) noexcept override;

 private:
  void count(CommKind kind, int64_t bytes);
  /// (n - 1) / n of a tensor.
  int64_t others(const at::Tensor& whole) const;

  std::unique_ptr<Communicator> engine_;
  std::shared_ptr<Traffic> traffic_;
};

} // namespace palimpsest
