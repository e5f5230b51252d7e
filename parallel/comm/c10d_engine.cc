#include <palimpsest/parallel/comm/c10d_engine.h>

#include <vector>

namespace palimpsest {

namespace {

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kSum:
      break;
  }
  return c10d::ReduceOp::SUM;
}

} // namespace

std::unique_ptr<Request> C10dEngine::all_gather(const at::Tensor& mine, const at::Tensor& whole) {
  at::Tensor in = mine;
  at::Tensor out = whole;
  c10d::AllgatherOptions options;
  options.timeout = kNeverTimeout;
  return collective(backend_->_allgather_base(out, in, options));
}

std::unique_ptr<Request> C10dEngine::all_to_all(const at::Tensor& whole, const at::Tensor& parts) {
  at::Tensor in = whole;
  at::Tensor out = parts;
  std::vector<int64_t> equal_parts;
  c10d::AllToAllOptions options;
  options.timeout = kNeverTimeout;
  return collective(backend_->alltoall_base(out, in, equal_parts, equal_parts, options));
}

std::unique_ptr<Request> C10dEngine::all_reduce(const at::Tensor& tensor, ReduceOp op) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::AllreduceOptions options;
  options.reduceOp = to_c10d(op);
  options.timeout = kNeverTimeout;
  return collective(backend_->allreduce(tensors, options));
}

std::unique_ptr<Request> C10dEngine::broadcast(const at::Tensor& tensor, int root) {
  std::vector<at::Tensor> tensors{tensor};
  c10d::BroadcastOptions options;
  options.rootRank = root;
  options.timeout = kNeverTimeout;
  return collective(backend_->broadcast(tensors, options));
}

std::unique_ptr<Request> C10dEngine::send(const at::Tensor& tensor, int peer) {
  std::vector<at::Tensor> tensors{tensor};
  return transfer(backend_->send(tensors, peer, 0));
}

std::unique_ptr<Request> C10dEngine::receive(const at::Tensor& tensor, int peer) {
  std::vector<at::Tensor> tensors{tensor};
  return transfer(backend_->recv(tensors, peer, 0));
}

std::unique_ptr<Request> C10dEngine::barrier() {
  c10d::BarrierOptions options;
  options.timeout = kNeverTimeout;
  return collective(backend_->barrier(options));
}

} // namespace palimpsest
