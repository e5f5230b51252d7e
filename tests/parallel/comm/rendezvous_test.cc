#include <palimpsest/parallel/comm/rendezvous.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <vector>

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
          HasSubstr("the launcher could not be reached at 127.0.0.1:" + std::to_string(port)),
          HasSubstr("within 0.5 s"))));
}

// A listener whose queue is full answers nothing, like a host that drops packets.
TEST(Rendezvous, AHostThatDoesNotAnswerIsNamedInTime) {
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  ASSERT_EQ(::bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(::listen(listener, 0), 0);
  socklen_t size = sizeof(address);
  ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  std::vector<int> queue;
  for (int i = 0; i < 4; ++i) {
    queue.push_back(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0));
    ::connect(queue.back(), reinterpret_cast<const sockaddr*>(&address), sizeof(address));
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(
      [&] {
        meet(
            {.address = "127.0.0.1",
             .port = ntohs(address.sin_port),
             .timeout = std::chrono::milliseconds(400)});
      },
      ThrowsMessage<EnvironmentError>(
          AllOf(HasSubstr("within 0.4 s"), HasSubstr("Connection timed out"))));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(2));
  queue.push_back(listener);
  for (const int fd : queue) {
    ::close(fd);
  }
}

} // namespace
} // namespace palimpsest
