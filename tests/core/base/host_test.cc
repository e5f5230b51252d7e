#include <palimpsest/core/base/host.h>

#include <gtest/gtest.h>

#include <sys/utsname.h>

namespace palimpsest {
namespace {

TEST(Host, ItsNameIsTheSystems) {
  utsname system{};
  ASSERT_EQ(::uname(&system), 0);
  EXPECT_EQ(host_name(), system.nodename);
}

TEST(Host, LoopbackAddresses) {
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("node-127"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
  EXPECT_FALSE(is_loopback(""));
}

} // namespace
} // namespace palimpsest
