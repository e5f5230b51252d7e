#include <palimpsest/core/device/device.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/cuda.h>
#include <palimpsest/core/device/host_memory.h>
#include <palimpsest/core/device/memory_context.h>

#include <ATen/Parallel.h>
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <thread>

namespace palimpsest {

Device Device::cpu() {
  return {DeviceType::kCpu, 0};
}

Device Device::cuda(int index) {
  const int count = cuda::device_count();
  if (index < 0 || index >= count) {
    throw EnvironmentError(
        "CUDA device {} does not exist: {}",
        index,
        count > 0 ? fmt::format("this machine has {}", count) : cuda::why_none());
  }
  return {DeviceType::kCuda, index};
}

bool Device::has_cuda() {
  return cuda::device_count() > 0;
}

std::string Device::name() const {
  if (type_ == DeviceType::kCuda) {
    return cuda::device_name(index_);
  }
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    const size_t colon = line.find(": ");
    if (line.starts_with("model name") && colon != std::string::npos) {
      return line.substr(colon + 2);
    }
  }
  return "CPU"; // Linux on Arm names no model
}

int64_t Device::total_memory() const {
  return type_ == DeviceType::kCuda ? cuda::device_memory(index_).total : host_memory("/").total;
}

int64_t Device::available_memory() const {
  return type_ == DeviceType::kCuda ? cuda::device_memory(index_).available
                                    : host_memory("/").available;
}

int Device::threads() const {
  cpu_set_t mask;
  if (sched_getaffinity(0, sizeof(mask), &mask) == 0) {
    return std::max(1, CPU_COUNT(&mask));
  }
  // More processors than the mask of fixed size can hold.
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

void set_threads(int n) {
  check(n >= 1, "set_threads({})", n);
  at::set_num_threads(n);
  adopt_openmp_workers();
}

} // namespace palimpsest
