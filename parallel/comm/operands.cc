#include <palimpsest/parallel/comm/operands.h>

#include <palimpsest/core/base/error.h>

#include <c10/core/ScalarType.h>

namespace palimpsest {

namespace {

void check_dense(const at::Tensor& tensor, const char* operation) {
  check(tensor.defined(), "{}: the tensor is undefined", operation);
  check(tensor.is_contiguous(), "{}: the tensor is not contiguous", operation);
}

void check_whole(const at::Tensor& whole, const at::Tensor& mine, int size, const char* operation) {
  check_dense(whole, operation);
  check_dense(mine, operation);
  check(
      whole.numel() == size * mine.numel(),
      "{}: the whole has {} elements, {} ranks of {} need {}",
      operation,
      whole.numel(),
      size,
      mine.numel(),
      size * mine.numel());
  check(whole.device() == mine.device(), "{}: the tensors are on two devices", operation);
}

bool overlap(const at::Tensor& one, const at::Tensor& other) {
  const auto* begin = static_cast<const char*>(one.const_data_ptr());
  const auto* other_begin = static_cast<const char*>(other.const_data_ptr());
  return begin < other_begin + other.nbytes() && other_begin < begin + one.nbytes();
}

} // namespace

void check_all_gather(const at::Tensor& mine, const at::Tensor& whole, int size) {
  check_whole(whole, mine, size, "all_gather");
  check(
      whole.scalar_type() == mine.scalar_type(),
      "all_gather: {} into {}",
      c10::toString(mine.scalar_type()),
      c10::toString(whole.scalar_type()));
}

void check_reduce_scatter(const at::Tensor& whole, const at::Tensor& mine, int size) {
  check_whole(whole, mine, size, "reduce_scatter");
  const at::ScalarType dtype = whole.scalar_type();
  check(
      dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf,
      "reduce_scatter: {} cannot be added",
      c10::toString(dtype));
  check(
      mine.scalar_type() == at::kFloat || mine.scalar_type() == at::kBFloat16,
      "reduce_scatter: sums are Float or BFloat16, not {}",
      c10::toString(mine.scalar_type()));
  check(!overlap(whole, mine), "reduce_scatter: the sum lies inside what is added");
}

void check_all_reduce(const at::Tensor& tensor) {
  check_dense(tensor, "all_reduce");
  switch (tensor.scalar_type()) {
    case at::kByte:
    case at::kInt:
    case at::kLong:
    case at::kHalf:
    case at::kBFloat16:
    case at::kFloat:
    case at::kDouble:
      return;
    default:
      check(false, "all_reduce: {} cannot be reduced", c10::toString(tensor.scalar_type()));
  }
}

void check_broadcast(const at::Tensor& tensor, int root, int size) {
  check_dense(tensor, "broadcast");
  check(0 <= root && root < size, "broadcast: root {} of {} ranks", root, size);
}

void check_transfer(const at::Tensor& tensor, int peer, int rank, int size) {
  check_dense(tensor, "send or receive");
  check(
      0 <= peer && peer < size && peer != rank,
      "send or receive: rank {} has no peer {} among {} ranks",
      rank,
      peer,
      size);
}

} // namespace palimpsest
