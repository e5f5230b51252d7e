#include <palimpsest/parallel/comm/all_texts.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include <cstring>

namespace palimpsest {

std::vector<std::string> all_texts(Communicator& ranks, const std::string& mine) {
  const at::Tensor longest = at::full({1}, static_cast<int64_t>(mine.size()), at::kLong);
  ranks.all_reduce(longest, ReduceOp::kMax).wait();
  const int64_t size = longest.item<int64_t>() + 1; // ends with a zero
  const at::Tensor sent = at::zeros({size}, at::kByte);
  std::memcpy(sent.mutable_data_ptr(), mine.data(), mine.size());
  const at::Tensor all = at::empty({size * ranks.size()}, at::kByte);
  ranks.all_gather(sent, all).wait();
  std::vector<std::string> texts;
  for (int rank = 0; rank < ranks.size(); ++rank) {
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + rank * size);
  }
  return texts;
}

} // namespace palimpsest
