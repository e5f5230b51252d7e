#pragma once

// Where the ranks of a job first meet: a store of names and values, held by rank 0 or a launcher.
//
//   c10::intrusive_ptr<c10d::Store> store =
//       meet({.address = "node-0", .port = 29500, .serve = rank == 0});
//   heartbeat->start(std::make_unique<StoreBoard>(store->clone()), ...);

#include <palimpsest/parallel/comm/heartbeat.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <memory>
#include <string>

namespace palimpsest {

struct MeetingPoint {
  std::string address; // host name or number of who holds the store
  std::string holder = "the launcher"; // who that is, for messages
  int port = 0; // 0, where serving: any free one
  bool serve = false; // this rank holds the store
  int listen_fd = -1; // a socket that listens at the port already; -1: none
  std::chrono::milliseconds timeout{300'000};
};

struct Store {
  c10::intrusive_ptr<c10d::Store> store;
  int port = 0;
};

/// Holds or reaches the store. UserError where the port to serve at is in use; EnvironmentError
/// where nobody answers in time.
Store meet(const MeetingPoint& point);

/// A store as the board of a Heartbeat.
class StoreBoard final : public Board {
 public:
  explicit StoreBoard(c10::intrusive_ptr<c10d::Store> store) : store_(std::move(store)) {}
  void put(const std::string& key, const std::string& text) override;
  std::optional<std::string> get(const std::string& key) override;

 private:
  c10::intrusive_ptr<c10d::Store> store_;
};

} // namespace palimpsest
