// Covers: core/device/cuda.cc
// Covers: core/device/no_cuda.cc

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/device.h>

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <sched.h>

#include <fstream>
#include <mutex>
#include <set>
#include <string>
#include <thread>

namespace palimpsest {
namespace {

TEST(Device, DescribesTheProcessor) {
  const Device device = Device::cpu();
  EXPECT_EQ(device.type(), DeviceType::kCpu);
  EXPECT_FALSE(device.name().empty());
  EXPECT_GT(device.available_memory(), 0);
  EXPECT_LE(device.available_memory(), device.total_memory());
}

TEST(Device, ThreadsFollowTheAffinityMask) {
  // On a thread of its own, whose mask may be narrowed without harm.
  std::thread([] {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    EXPECT_EQ(Device::cpu().threads(), 1);
  }).join();
}

TEST(Device, ACudaDeviceThatIsNotThereIsAnErrorWithAReason) {
  EXPECT_THROW(Device::cuda(1000), EnvironmentError);
  EXPECT_THROW(Device::cuda(-1), EnvironmentError);
}

TEST(Device, DescribesTheGpu) {
  if (!Device::has_cuda()) {
    GTEST_SKIP() << "no CUDA device, or built without CUDA";
  }
  const Device device = Device::cuda(0);
  EXPECT_EQ(device.type(), DeviceType::kCuda);
  EXPECT_FALSE(device.name().empty());
  EXPECT_GT(device.available_memory(), 0);
  EXPECT_LE(device.available_memory(), device.total_memory());
}

TEST(OpenMP, ExactlyOneRuntimeIsMapped) {
  std::set<std::string> runtimes; // by file
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    const size_t path = line.find('/');
    if (path != std::string::npos &&
        (line.find("libgomp") != std::string::npos || line.find("libomp") != std::string::npos ||
         line.find("libiomp") != std::string::npos)) {
      runtimes.insert(line.substr(path));
    }
  }
  EXPECT_EQ(runtimes.size(), 1U) << testing::PrintToString(runtimes);
}

TEST(OpenMP, ParallelForUsesTheThreadsThatAreSet) {
  for (const int threads : {2, 1}) {
    set_threads(threads);
    EXPECT_EQ(at::get_num_threads(), threads);
    std::mutex mutex;
    std::set<std::thread::id> seen;
    at::parallel_for(0, 1000, 1, [&](int64_t, int64_t) {
      const std::lock_guard lock(mutex);
      seen.insert(std::this_thread::get_id());
    });
    EXPECT_EQ(static_cast<int>(seen.size()), threads);
  }
  EXPECT_THROW(set_threads(0), InternalError);
}

} // namespace
} // namespace palimpsest
