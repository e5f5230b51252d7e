#pragma once

// Where one rank is, for its peers: set by whoever runs the step, published by the heartbeat, read
// by a rank that waits in vain.
//
//   auto status = std::make_shared<RankStatus>();
//   status->set_place({.phase = "backward block 3", .step = 7, .operation = 41});
//   {
//     const ScopedLongWork work(*status, "tokenising chat.jsonl");   // the peers wait as long as it takes
//     tokenise();
//   }

#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <utility>

namespace palimpsest {

class RankStatus {
 public:
  struct Place {
    std::string phase; // "forward block 3", "saving"; empty: not said
    int64_t step = -1; // -1: not in one
    int64_t operation = -1; // of the step's plan
  };

  /// What a peer reads.
  struct Report {
    Place place;
    std::string waiting_for; // "all_gather 17 of 'shard'"; empty: it computes
    std::string long_work; // that it does now; empty: none declared, or it waits
    /// ms since it last computed under declared long work; 0: it does; -1: it never did.
    int64_t since_long_work = -1;
    std::map<std::string, int64_t> issued; // operations, by group
  };

  void set_place(Place place);

  /// Set by the communicators.
  void set_issued(const std::string& group, int64_t number);
  void set_waiting_for(std::string what);

  /// Declared long work; counted, so it nests. It counts as declared until `limit`, but not while
  /// this rank itself waits for others.
  void begin_long_work(std::string what, std::chrono::steady_clock::time_point limit);
  void end_long_work();

  Report report() const;

 private:
  mutable std::mutex mutex_;
  Report report_;
  int long_works_ = 0;
  std::chrono::steady_clock::time_point long_work_limit_;
  std::optional<std::chrono::steady_clock::time_point> long_work_end_; // its limit while it goes on
};

/// Declares work during which peers that wait for this rank do not time out: tokenising, saving. For
/// them a time limit begins when the work has ended, or when this rank has come to wait as well: who
/// waits does not work.
class ScopedLongWork {
 public:
  /// `at_most`: work that takes longer counts as hung.
  ScopedLongWork(
      RankStatus& status,
      std::string what,
      std::chrono::milliseconds at_most = std::chrono::hours(1))
      : status_(status) {
    status_.begin_long_work(std::move(what), std::chrono::steady_clock::now() + at_most);
  }
  ScopedLongWork(const ScopedLongWork&) = delete;
  ScopedLongWork& operator=(const ScopedLongWork&) = delete;
  ~ScopedLongWork() {
    status_.end_long_work();
  }

 private:
  RankStatus& status_;
};

/// A report as one line of text, and back.
std::string encode(const RankStatus::Report& report);
RankStatus::Report decode_report(const std::string& text);

/// "at backward block 3 of step 7 (operation 41), waiting for all_gather 17 of 'shard'".
std::string describe(const RankStatus::Report& report);

} // namespace palimpsest
