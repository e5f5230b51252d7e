#pragma once

// Gloo over TCP, through c10d.
//
//   std::shared_ptr<Engine> engine = gloo_engine(store, rank, size, {.address = "127.0.0.1"});

#include <palimpsest/parallel/comm/engine.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace palimpsest {

struct GlooSettings {
  /// Of this host, for the others to connect to; empty: of the interface that the environment
  /// variable GLOO_SOCKET_IFNAME names, else of the host's name.
  std::string address;
  /// How long ranks may take to connect to each other.
  std::chrono::milliseconds startup_timeout{300'000};
};

/// Connects all ranks of a group; `store` is theirs alone. EnvironmentError where that fails.
std::shared_ptr<Engine> gloo_engine(
    const c10::intrusive_ptr<c10d::Store>& store,
    int rank,
    int size,
    const GlooSettings& settings);

} // namespace palimpsest
