#include <palimpsest/launcher/launch/port.h>

#include <palimpsest/core/base/error.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

namespace palimpsest {

ListeningSocket::ListeningSocket(int port)
    : socket_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  const int yes = 1; // a port that only a finished job's last packets still use is free
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  socklen_t size = sizeof address;
  if (setsockopt(fd(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) != 0 ||
      bind(fd(), reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      listen(fd(), SOMAXCONN) != 0 ||
      getsockname(fd(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw UserError(
        "cannot listen at port {} of this host: {}; give another one with --master-port, or none: "
        "a free one is then found",
        port,
        std::strerror(errno));
  }
  port_ = ntohs(address.sin_port);
}

} // namespace palimpsest
