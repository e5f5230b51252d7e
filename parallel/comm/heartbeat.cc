#include <palimpsest/parallel/comm/heartbeat.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <exception>
#include <map>
#include <utility>

namespace palimpsest {

namespace {

constexpr const char* kAbort = "abort";
/// A rank whose count stands still for as many intervals is dead or stopped: more than a busy
/// machine delays a thread.
constexpr int kIntervalsToDie = 4;
/// Ranks that a message names one by one.
constexpr size_t kNamed = 8;

std::string beat_key(int rank) {
  return fmt::format("beat/{}", rank);
}

} // namespace

Heartbeat::Heartbeat(int rank, std::shared_ptr<RankStatus> status)
    : rank_(rank), status_(std::move(status)) {}

Heartbeat::~Heartbeat() {
  if (thread_.joinable()) {
    status_->set_place({.phase = "the end of its run"});
    try {
      board_->leave([this] { return ended(); });
    } catch (...) { // NOLINT(bugprone-empty-catch): the board has gone before
    }
  }
  stop();
}

void Heartbeat::start(
    std::unique_ptr<Board> board,
    std::chrono::milliseconds interval,
    std::string board_lost) {
  board_ = std::move(board);
  interval_ = interval;
  board_lost_ = std::move(board_lost);
  publish();
  thread_ = std::thread([this] { run(); });
}

void Heartbeat::stop() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) {
    thread_.join();
  }
}

void Heartbeat::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_.wait_for(lock, interval_, [this] { return stop_; })) {
    lock.unlock();
    try {
      publish();
      ask_whether_ended();
    } catch (const std::exception&) {
      end_here(board_lost_);
    }
    lock.lock();
  }
}

void Heartbeat::publish() {
  board_->put(beat_key(rank_), fmt::format("{} {}", ++beats_, encode(status_->report())));
}

bool Heartbeat::ask_whether_ended() {
  if (!ended_ && board_ != nullptr) {
    if (const std::optional<std::string> reason = board_->get(kAbort)) {
      end_here(*reason);
    }
  }
  return ended_;
}

void Heartbeat::end(const std::string& reason) noexcept {
  try {
    const bool first = !ended_;
    end_here(reason);
    if (first && board_ != nullptr && !board_->get(kAbort)) {
      board_->put(kAbort, reason);
      board_->get(kAbort); // only now is it surely there: this process may end at once
    }
  } catch (...) { // NOLINT(bugprone-empty-catch): a lost board is noticed by the peers themselves
  }
}

void Heartbeat::end_here(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!ended_) {
    reason_ = reason;
    ended_ = true;
  }
}

std::string Heartbeat::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::vector<Heartbeat::Seen> Heartbeat::watch(const std::vector<int>& ranks) {
  std::map<int, std::string> first;
  for (const int rank : ranks) {
    first[rank] = board_->get(beat_key(rank)).value_or("");
  }
  std::vector<Seen> result;
  for (int round = 1; round <= kIntervalsToDie && !first.empty(); ++round) {
    std::this_thread::sleep_for(interval_);
    for (auto entry = first.begin(); entry != first.end();) {
      const auto& [rank, before] = *entry;
      const std::string now = board_->get(beat_key(rank)).value_or("");
      const bool alive = now != before;
      if (!alive && round < kIntervalsToDie) {
        ++entry;
        continue;
      }
      Seen seen{.rank = rank, .alive = alive};
      if (!now.empty()) {
        seen.report = decode_report(now.substr(now.find(' ')));
      }
      result.push_back(std::move(seen));
      entry = first.erase(entry);
    }
  }
  std::ranges::sort(result, {}, &Seen::rank);
  return result;
}

std::optional<std::chrono::milliseconds> Heartbeat::since_long_work(const std::vector<int>& ranks) {
  if (board_ == nullptr) {
    return std::nullopt;
  }
  // Only those that had any are watched for life. This rank waits: its own work delays nobody.
  std::vector<int> workers;
  for (const int rank : ranks) {
    if (rank == rank_) {
      continue;
    }
    const std::string text = board_->get(beat_key(rank)).value_or("");
    if (!text.empty() && decode_report(text.substr(text.find(' '))).since_long_work >= 0) {
      workers.push_back(rank);
    }
  }
  std::optional<std::chrono::milliseconds> shortest;
  for (const Seen& seen : watch(workers)) {
    if (seen.alive) {
      const std::chrono::milliseconds since(seen.report->since_long_work);
      shortest = std::min(shortest.value_or(since), since);
    }
  }
  return shortest;
}

std::string Heartbeat::explain(const OperationPlace& operation) {
  if (board_ == nullptr) {
    return "nothing is known of the other ranks";
  }
  std::vector<int> others;
  std::ranges::copy_if(
      operation.ranks, std::back_inserter(others), [this](int rank) { return rank != rank_; });
  std::vector<std::string> sentences;
  size_t unnamed = 0;
  for (const Seen& seen : watch(others)) {
    const bool late = operation.number == 0 || !seen.report || [&] {
      const auto issued = seen.report->issued.find(operation.group);
      return issued == seen.report->issued.end() || issued->second < operation.number;
    }();
    if (seen.alive && !late) {
      continue;
    }
    if (sentences.size() == kNamed) {
      ++unnamed;
      continue;
    }
    const std::string place =
        seen.report ? describe(*seen.report) : "before its first sign of life";
    if (!seen.alive) {
      sentences.push_back(fmt::format(
          "rank {} gives no sign of life, its process has ended or is stopped: it was last {}",
          seen.rank,
          place));
    } else if (operation.number == 0) {
      sentences.push_back(fmt::format("rank {} lives, {}", seen.rank, place));
    } else {
      sentences.push_back(
          fmt::format("rank {} has not come to it: it lives, {}", seen.rank, place));
    }
  }
  if (sentences.empty()) {
    return "all ranks have come to it and live: the transfer itself does not get on";
  }
  if (unnamed > 0) {
    sentences.push_back(fmt::format("{} more ranks are missing", unnamed));
  }
  return fmt::format("{}", fmt::join(sentences, "; "));
}

} // namespace palimpsest
