#include <palimpsest/parallel/comm/rendezvous.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Rendezvous, TheHolderTakesAFreePortAndOthersReachIt) {
  const Store held = meet({.address = "127.0.0.1", .serve = true});
  ASSERT_GT(held.port, 0);
  const Store other = meet({.address = "127.0.0.1", .port = held.port});
  StoreBoard board(held.store->clone());
  StoreBoard their_board(other.store);
  EXPECT_EQ(their_board.get("greeting"), std::nullopt);
  board.put("greeting", "hello");
  EXPECT_EQ(board.get("greeting"), "hello"); // after which all others see it too
  EXPECT_EQ(their_board.get("greeting"), "hello");
}

TEST(Rendezvous, AListeningSocketIsTakenOver) {
  const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(fd, 8), 0);
  socklen_t size = sizeof(address);
  ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size);
  const Store held = meet({.address = "localhost", .serve = true, .listen_fd = fd});
  EXPECT_EQ(held.port, ntohs(address.sin_port));
  EXPECT_NO_THROW(meet({.address = "localhost", .port = held.port}));
}

TEST(Rendezvous, APortInUseIsNamedAtOnce) {
  for (const char* const address : {"127.0.0.1", "localhost"}) {
    const Store held = meet({.address = address, .serve = true});
    const auto start = std::chrono::steady_clock::now();
    EXPECT_THAT(
        [&] { meet({.address = address, .port = held.port, .serve = true}); },
        ThrowsMessage<UserError>(
            AllOf(HasSubstr("port " + std::to_string(held.port)), HasSubstr("is in use"))));
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  }
}

TEST(Rendezvous, NobodyAtThePortIsNamedInTime) {
  int port = 0;
  { port = meet({.address = "127.0.0.1", .serve = true}).port; }
  EXPECT_THAT(
      [&] {
        meet({.address = "127.0.0.1", .port = port, .timeout = std::chrono::milliseconds(500)});
      },
      ThrowsMessage<EnvironmentError>(AllOf(
          HasSubstr("no store could be reached at 127.0.0.1:" + std::to_string(port)),
          HasSubstr("within 0.5 s"))));
}

TEST(Rendezvous, LoopbackAddresses) {
  EXPECT_TRUE(is_loopback("localhost"));
  EXPECT_TRUE(is_loopback("127.0.1.1"));
  EXPECT_TRUE(is_loopback("::1"));
  EXPECT_FALSE(is_loopback("node-127"));
  EXPECT_FALSE(is_loopback("10.0.0.1"));
}

} // namespace
} // namespace palimpsest
