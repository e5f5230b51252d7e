#include <palimpsest/parallel/comm/counting.h>

#include <utility>

namespace palimpsest {
namespace {

int64_t bytes_of(const at::Tensor& tensor) {
  return tensor.numel() * static_cast<int64_t>(tensor.element_size());
}

} // namespace

std::string_view to_text(CommKind kind) {
  constexpr std::array<std::string_view, kCommKinds> kNames{
      "all_gather", "reduce_scatter", "all_reduce", "broadcast", "send", "receive", "barrier"};
  return kNames[static_cast<size_t>(kind)];
}

int64_t Traffic::bytes() const {
  int64_t total = 0;
  for (const TrafficCount& kind : kinds) {
    total += kind.bytes;
  }
  return total;
}

CountingCommunicator::CountingCommunicator(
    std::unique_ptr<Communicator> engine,
    std::shared_ptr<Traffic> traffic)
    : engine_(std::move(engine)), traffic_(std::move(traffic)) {}

void CountingCommunicator::count(CommKind kind, int64_t bytes) {
  TrafficCount& entry = (*traffic_)[kind];
  ++entry.calls;
  entry.bytes += bytes;
}

int64_t CountingCommunicator::others(const at::Tensor& whole) const {
  return bytes_of(whole) / size() * (size() - 1);
}

int CountingCommunicator::rank() const {
  return engine_->rank();
}

int CountingCommunicator::size() const {
  return engine_->size();
}

std::string CountingCommunicator::description() const {
  return engine_->description();
}

Ticket CountingCommunicator::all_gather(const at::Tensor& mine, const at::Tensor& whole) {
  count(CommKind::kAllGather, others(whole));
  return engine_->all_gather(mine, whole);
}

Ticket CountingCommunicator::reduce_scatter(const at::Tensor& whole, const at::Tensor& mine) {
  count(CommKind::kReduceScatter, others(whole));
  return engine_->reduce_scatter(whole, mine);
}

Ticket CountingCommunicator::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  count(CommKind::kAllReduce, 2 * bytes_of(tensor) * (size() - 1) / size());
  return engine_->all_reduce(tensor, op);
}

Ticket CountingCommunicator::broadcast(const at::Tensor& tensor, int root) {
  count(CommKind::kBroadcast, bytes_of(tensor));
  return engine_->broadcast(tensor, root);
}

Ticket CountingCommunicator::send(const at::Tensor& tensor, int peer) {
  count(CommKind::kSend, bytes_of(tensor));
  return engine_->send(tensor, peer);
}

Ticket CountingCommunicator::receive(const at::Tensor& tensor, int peer) {
  count(CommKind::kReceive, bytes_of(tensor));
  return engine_->receive(tensor, peer);
}

Ticket CountingCommunicator::barrier() {
  count(CommKind::kBarrier, 0);
  return engine_->barrier();
}

std::unique_ptr<Communicator> CountingCommunicator::split(
    int color,
    int key,
    const std::string& name) {
  return std::make_unique<CountingCommunicator>(engine_->split(color, key, name), traffic_);
}

void CountingCommunicator::abort(const std::string& reason) noexcept {
  engine_->abort(reason);
}

} // namespace palimpsest
