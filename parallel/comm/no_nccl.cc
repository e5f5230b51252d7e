#include <palimpsest/parallel/comm/nccl.h>

#include <palimpsest/core/base/error.h>

namespace palimpsest {

bool has_nccl() {
  return false;
}

std::shared_ptr<Engine> nccl_engine(
    std::shared_ptr<Engine> /*cpu*/,
    const c10::intrusive_ptr<c10d::Store>& /*store*/,
    int /*rank*/,
    int /*size*/,
    int /*device*/) {
  throw UserError(
      "this program was built without NCCL: choose backend gloo or mpi, or build with the cuda "
      "preset where NCCL's headers are installed");
}

} // namespace palimpsest
