// The program, whose rank PALIMPSEST_SHORT_RANK is refused the memory of one tensor: that of number
// PALIMPSEST_SHORT_TENSOR, counted from when the file PALIMPSEST_SHORT_AFTER is there. At its end each
// rank writes how many it counted to RANK in the folder PALIMPSEST_SHORT_COUNTS.

#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/ledger.h>
#include <palimpsest/launcher/cli/program.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <unistd.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <fstream>
#include <string>

namespace palimpsest {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// Empty: a launcher's process, or the only one.
std::string this_rank() {
  for (const char* name : {"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"}) {
    if (const std::string rank = variable(name); !rank.empty()) {
      return rank;
    }
  }
  return "";
}

/// The program's own allocator, before which a tensor may be refused as the system would do it.
class ShortAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes > 0 && counts() && ++counted_ == refused_) {
      const Ledger::Tag tag = Ledger::of_this_thread();
      tag.ledger->note_refusal(static_cast<int64_t>(bytes), tag.category, tag.ledger->live);
      TORCH_CHECK_WITH(OutOfMemoryError, false, "out of memory: ", bytes, " bytes wanted");
    }
    return CpuAllocator::instance().allocate(bytes);
  }
  c10::DeleterFnPtr raw_deleter() const override {
    return CpuAllocator::instance().raw_deleter();
  }
  void copy_data(void* destination, const void* source, size_t bytes) const override {
    CpuAllocator::instance().copy_data(destination, source, bytes);
  }
  int64_t counted() const {
    return counted_;
  }

 private:
  bool counts() {
    if (!begun_ && access(after_.c_str(), F_OK) == 0) {
      begun_ = true;
    }
    return begun_;
  }

  const std::string after_ = variable("PALIMPSEST_SHORT_AFTER");
  const int64_t refused_ = !this_rank().empty() && variable("PALIMPSEST_SHORT_RANK") == this_rank()
      ? std::atoll(variable("PALIMPSEST_SHORT_TENSOR").c_str())
      : 0;
  std::atomic<bool> begun_ = false;
  std::atomic<int64_t> counted_ = 0;
};

int run(int count, char** arguments) {
  static auto* const allocator = new ShortAllocator; // tensors of static lifetime outlive main()
  c10::SetCPUAllocator(allocator, /*priority=*/200); // the program's own has less
  const int code = run_program(count, arguments);
  if (!this_rank().empty()) {
    std::ofstream(variable("PALIMPSEST_SHORT_COUNTS") + "/" + this_rank()) << allocator->counted();
  }
  return code;
}

} // namespace
} // namespace palimpsest

int main(int count, char** arguments) {
  std::signal(SIGXFSZ, SIG_IGN);
  std::signal(SIGPIPE, SIG_IGN);
  return palimpsest::run(count, arguments);
}
