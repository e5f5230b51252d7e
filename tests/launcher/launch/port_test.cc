#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/port.h>

#include <gmock/gmock.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

namespace palimpsest {
namespace {

int connect_to(int port) {
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const int result = connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address);
  close(connection);
  return result;
}

TEST(ListeningSocket, ListensFromItsChoiceOn) {
  const ListeningSocket a(0);
  const ListeningSocket b(0);
  EXPECT_GT(a.port(), 0);
  EXPECT_NE(a.port(), b.port());
  EXPECT_EQ(connect_to(a.port()), 0); // it waits in the queue
}

TEST(ListeningSocket, ABusyPortIsNamed) {
  const ListeningSocket first(0);
  try {
    const ListeningSocket second(first.port());
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(
        error.what(), ::testing::HasSubstr("port " + std::to_string(first.port()) + " of this"));
  }
}

TEST(ListeningSocket, ItsPortIsFreeAfterwards) {
  int port = 0;
  {
    const ListeningSocket socket(0);
    port = socket.port();
    EXPECT_EQ(connect_to(port), 0);
  }
  EXPECT_NE(connect_to(port), 0);
  EXPECT_EQ(ListeningSocket(port).port(), port);
}

} // namespace
} // namespace palimpsest
