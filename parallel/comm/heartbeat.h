#pragma once

// Who lives, and where the others are: the sign of life of one rank, and what it knows of its
// peers'. All communicators of a rank share one.
//
//   auto heartbeat = std::make_shared<Heartbeat>(0, status);
//   heartbeat->start(std::make_unique<StoreBoard>(store), std::chrono::milliseconds(500));
//   heartbeat->explain({"shard", {0, 1, 2, 3}, 17});
//   // "rank 2 has not come to it: it lives, at backward block 3 of step 7"
//
// A thread publishes the rank's status on a board that all ranks read. Clocks are never compared:
// a rank is dead, or stopped, when its count stands still while one watches. The first abort of any
// rank reaches all boards' readers within an interval.

#include <palimpsest/parallel/comm/rank_status.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest {

/// Named texts that all ranks write and read; any thread.
class Board {
 public:
  virtual ~Board() = default;
  virtual void put(const std::string& key, const std::string& text) = 0;
  virtual std::optional<std::string> get(const std::string& key) = 0;
  /// This rank is done: waits, within reason, for what others still need of it. `ended` says whether
  /// the world's communication has ended early.
  virtual void leave(const std::function<bool()>& /*ended*/) {}
};

/// An operation of a group, as its peers know it.
struct OperationPlace {
  std::string group; // by its unique name
  std::vector<int> ranks; // of the world, that it needs
  int64_t number = 0; // of the operations that the group has issued; 0: not counted (transfers)
};

class Heartbeat {
 public:
  /// Without a board nothing is known of the peers, and an abort stays here.
  Heartbeat(int rank, std::shared_ptr<RankStatus> status);
  /// Leaves the board first: until all have come to their end, they see this rank live.
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// `last_words` says what it means when the board cannot be reached: "rank 0 has ended".
  void start(
      std::unique_ptr<Board> board,
      std::chrono::milliseconds interval,
      std::string board_lost = "the board is gone");

  /// Publishes no more; the thread has ended on return.
  void stop();

  RankStatus& status() {
    return *status_;
  }
  int rank() const {
    return rank_;
  }

  /// Ends the world's communication, here at once and at the peers within an interval. The first
  /// reason stays.
  void end(const std::string& reason) noexcept;
  bool ended() const {
    return ended_;
  }
  std::string reason() const;

  /// Asks the board now, not at the next beat, whether a peer has ended the world.
  bool ask_whether_ended();

  /// How long ago the last of the others among these ranks, of those that live, computed under
  /// declared long work; zero: one does. Takes some intervals where there was any.
  std::optional<std::chrono::milliseconds> since_long_work(const std::vector<int>& ranks);

  /// Which ranks are not at the same operation and where they are, or which are dead: a sentence
  /// without a full stop. Takes some intervals.
  std::string explain(const OperationPlace& operation);

 private:
  struct Seen {
    int rank = 0;
    bool alive = false;
    std::optional<RankStatus::Report> report;
  };

  void run();
  void publish();
  void end_here(const std::string& reason);
  /// Watches the ranks for some intervals.
  std::vector<Seen> watch(const std::vector<int>& ranks);

  const int rank_;
  const std::shared_ptr<RankStatus> status_;
  std::unique_ptr<Board> board_;
  std::chrono::milliseconds interval_{};
  std::string board_lost_;
  mutable std::mutex mutex_;
  std::condition_variable stopping_;
  bool stop_ = false;
  int64_t beats_ = 0;
  std::atomic<bool> ended_ = false;
  std::string reason_;
  std::thread thread_;
};

} // namespace palimpsest
