#include <palimpsest/parallel/comm/rendezvous.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/host.h>
#include <palimpsest/parallel/comm/engine.h>

#include <c10/util/Logging.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

namespace palimpsest {

namespace {

/// A socket that closes unless somebody takes it.
class Socket {
 public:
  explicit Socket(int family, int flags = 0)
      : fd_(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | flags, 0)) {}
  Socket(const Socket&) = delete;
  Socket& operator=(const Socket&) = delete;
  ~Socket() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  int fd() const {
    return fd_;
  }
  int take() {
    return std::exchange(fd_, -1);
  }

 private:
  int fd_;
};

template <typename Address>
bool bind_and_listen(int fd, const Address& address) {
  constexpr int kOn = 1;
  ::setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &kOn, sizeof(kOn));
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0 &&
      ::listen(fd, SOMAXCONN) == 0;
}

/// A listening socket; of this host only where the meeting is on it.
int listen_at(const MeetingPoint& point) {
  const bool local = is_loopback(point.address);
  bool listening = false;
  int error = 0;
  Socket wide(local ? AF_INET : AF_INET6);
  if (!local && wide.fd() >= 0) {
    constexpr int kOff = 0; // IPv4 too
    ::setsockopt(wide.fd(), IPPROTO_IPV6, IPV6_V6ONLY, &kOff, sizeof(kOff));
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(point.port);
    listening = bind_and_listen(wide.fd(), address);
    error = errno;
    if (listening) {
      return wide.take();
    }
  }
  if (error != EADDRINUSE) {
    Socket socket(AF_INET);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(local ? INADDR_LOOPBACK : INADDR_ANY);
    address.sin_port = htons(point.port);
    if (socket.fd() >= 0 && bind_and_listen(socket.fd(), address)) {
      return socket.take();
    }
    error = errno;
  }
  if (error == EADDRINUSE) {
    throw UserError(
        "port {} of {} is in use by another program or job: give each job a port of its own, or "
        "none and a free one is taken",
        point.port,
        point.address);
  }
  throw UserError("cannot listen at port {} of {}: {}", point.port, point.address, strerror(error));
}

int port_of(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw EnvironmentError("the socket {} to listen at is none: {}", fd, strerror(errno));
  }
  return ntohs(
      address.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(address).sin6_port
                                    : reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

using Clock = std::chrono::steady_clock;

/// How long one address of a host is tried before the next: a host that drops packets answers none.
constexpr std::chrono::seconds kTry{3};

/// 0 where somebody accepts at the address by then, else what errno calls the reason.
int try_to_connect(const addrinfo& address, Clock::time_point deadline) {
  const Socket socket(address.ai_family, SOCK_NONBLOCK);
  if (socket.fd() < 0) {
    return errno;
  }
  if (::connect(socket.fd(), address.ai_addr, address.ai_addrlen) == 0) {
    return 0;
  }
  if (errno != EINPROGRESS) {
    return errno;
  }
  pollfd connected{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
  int ready = 0;
  do {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now());
    ready = ::poll(&connected, 1, static_cast<int>(std::max<int64_t>(left.count(), 0)));
  } while (ready < 0 && errno == EINTR);
  if (ready < 1) {
    return ready == 0 ? ETIMEDOUT : errno;
  }
  int error = 0;
  socklen_t size = sizeof(error);
  return ::getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

/// Waits until somebody listens there: LibTorch's own waiting begins with long pauses and prints
/// stack traces.
void reach(const MeetingPoint& point) {
  const auto deadline = Clock::now() + point.timeout;
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  std::string last = "no answer";
  while (Clock::now() < deadline) {
    addrinfo* found = nullptr;
    const int code =
        ::getaddrinfo(point.address.c_str(), std::to_string(point.port).c_str(), &hints, &found);
    const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> addresses(found, ::freeaddrinfo);
    last = code == 0 ? last : ::gai_strerror(code);
    for (const addrinfo* address = found; address != nullptr; address = address->ai_next) {
      const int error = try_to_connect(*address, std::min(deadline, Clock::now() + kTry));
      if (error == 0) {
        return;
      }
      last = strerror(error);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  throw EnvironmentError("{}", last);
}

} // namespace

Store meet(const MeetingPoint& point) {
  // Whatever fails is thrown, and told once by whoever catches it; LibTorch prints it too, with
  // stacks, from every thread.
  if (std::getenv("TORCH_CPP_LOG_LEVEL") == nullptr) {
    constexpr int kFatal = 3;
    FLAGS_caffe2_log_level = kFatal;
  }
  c10d::TCPStoreOptions options;
  options.waitWorkers = false;
  options.timeout = point.timeout;
  options.isServer = point.serve;
  options.port = point.port;
  if (point.serve) {
    const int fd = point.listen_fd >= 0 ? point.listen_fd : listen_at(point);
    options.masterListenFd = fd;
    options.port = port_of(fd);
  }
  try {
    if (!point.serve) {
      reach(point);
    }
    return {c10::make_intrusive<c10d::TCPStore>(point.address, options), options.port};
  } catch (const std::exception& error) {
    if (point.serve) {
      throw EnvironmentError(
          "the store cannot be held at {}:{}: {}", point.address, options.port, message_of(error));
    }
    throw EnvironmentError(
        "{} could not be reached at {}:{} within {} s: does it run, and is the address right? "
        "parallel.startup_timeout sets how long it is tried\n{}",
        point.holder,
        point.address,
        options.port,
        std::chrono::duration<double>(point.timeout).count(),
        message_of(error));
  }
}

void StoreBoard::put(const std::string& key, const std::string& text) {
  store_->set(key, std::vector<uint8_t>(text.begin(), text.end()));
}

std::optional<std::string> StoreBoard::get(const std::string& key) {
  if (!store_->check({key})) {
    return std::nullopt;
  }
  const std::vector<uint8_t> bytes = store_->get(key);
  return std::string(bytes.begin(), bytes.end());
}

} // namespace palimpsest
