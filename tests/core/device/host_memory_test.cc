#include <palimpsest/core/base/error.h>
#include <palimpsest/core/device/host_memory.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

/// A file tree like a machine's, removed at the end.
class HostMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    root_ = fs::path(testing::TempDir()) /
        testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(root_);
    write("proc/meminfo", "MemTotal:  1000 kB\nMemFree:  10 kB\nMemAvailable:  800 kB\n");
  }
  void TearDown() override {
    fs::remove_all(root_);
  }
  void write(const fs::path& file, const std::string& text) {
    fs::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  fs::path root_;
};

TEST_F(HostMemoryTest, WithoutControlGroupsIsTheMachines) {
  const HostMemory memory = host_memory(root_);
  EXPECT_EQ(memory.total, 1000 * 1024);
  EXPECT_EQ(memory.available, 800 * 1024);
}

TEST_F(HostMemoryTest, EveryEnclosingGroupOfVersion2Limits) {
  write("proc/self/cgroup", "0::/outer/inner\n");
  write("sys/fs/cgroup/outer/inner/memory.max", "max\n");
  write("sys/fs/cgroup/outer/memory.max", "500000\n");
  write("sys/fs/cgroup/outer/memory.current", "300000\n");
  write("sys/fs/cgroup/outer/memory.stat", "anon 1\ninactive_file 100000\n");
  const HostMemory memory = host_memory(root_);
  EXPECT_EQ(memory.total, 500000);
  EXPECT_EQ(memory.available, 300000); // 500,000 less the 200,000 that cannot be dropped
}

TEST_F(HostMemoryTest, Version1BesideOtherControllers) {
  write("proc/self/cgroup", "9:cpu,cpuacct:/x\n4:hugetlb,memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "400000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "450000\n");
  const HostMemory memory = host_memory(root_);
  EXPECT_EQ(memory.total, 400000);
  EXPECT_EQ(memory.available, 0);
}

TEST_F(HostMemoryTest, TheMountItselfIsTheGroupInAContainer) {
  write("proc/self/cgroup", "0::/docker/0123\n");
  write("sys/fs/cgroup/memory.max", "700000\n");
  EXPECT_EQ(host_memory(root_).total, 700000);
}

TEST_F(HostMemoryTest, NamesTheFileThatCannotBeRead) {
  fs::remove(root_ / "proc/meminfo");
  try {
    host_memory(root_);
    FAIL() << "nothing thrown";
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr((root_ / "proc/meminfo").string()));
  }
}

} // namespace
} // namespace palimpsest
