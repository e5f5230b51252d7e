#pragma once

// A port that is ours from the moment it is chosen.
//
//   const ListeningSocket socket(0);             // any free port of this host's loopback
//   // socket.port() goes to all ranks, socket.fd() is inherited by rank 0
//
// Choosing a free number and binding it later is a race with every other job of the machine; a
// socket that already listens is none.

#include <palimpsest/core/base/files.h>

namespace palimpsest {

class ListeningSocket {
 public:
  /// Listens at `port` of 127.0.0.1; 0: one that is free. Early peers wait in its queue. UserError
  /// with the number where the port is in use or not allowed.
  explicit ListeningSocket(int port);

  int port() const {
    return port_;
  }
  /// Closed on exec: whoever inherits it clears that.
  int fd() const {
    return socket_.get();
  }

 private:
  FileDescriptor socket_;
  int port_ = 0;
};

} // namespace palimpsest
