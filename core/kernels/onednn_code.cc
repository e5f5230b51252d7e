#include <palimpsest/core/kernels/onednn_code.h>

#include <palimpsest/core/base/error.h>

#include <oneapi/dnnl/dnnl.h>
#include <sys/mman.h>

#include <cstdint>
#include <mutex>
#include <new>
#include <vector>

namespace palimpsest::kernels::onednn {

void require_code_room() {
  // A product's code takes up to 3 MiB, a table of dnnl_sgemm's 12.
  constexpr size_t kRoom = size_t{32} << 20;
  void* const room = mmap(
      nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (room == MAP_FAILED) {
    throw std::bad_alloc();
  }
  munmap(room, kRoom);
}

void prepare_sgemm() {
  static std::once_flag once;
  std::call_once(once, [] {
    constexpr int64_t kSide = 64;
    constexpr int64_t kFewRows = 2; // they have a table of their own
    const std::vector<float> operand(kSide * kSide);
    std::vector<float> result(kSide * kSide);
    for (const int64_t rows : {kSide, kFewRows}) {
      require_code_room();
      const auto status = dnnl_sgemm(
          'N',
          'T',
          rows,
          kSide,
          kSide,
          1.0F,
          operand.data(),
          kSide,
          operand.data(),
          kSide,
          0.0F,
          result.data(),
          kSide);
      if (status == dnnl_out_of_memory) {
        throw std::bad_alloc();
      }
      check(status == dnnl_success, "sgemm failed with status {}", static_cast<int>(status));
    }
  });
}

} // namespace palimpsest::kernels::onednn
