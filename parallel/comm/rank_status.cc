#include <palimpsest/parallel/comm/rank_status.h>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <utility>

namespace palimpsest {

void RankStatus::set_place(Place place) {
  const std::lock_guard lock(mutex_);
  report_.place = std::move(place);
}

void RankStatus::set_issued(const std::string& group, int64_t number) {
  const std::lock_guard lock(mutex_);
  report_.issued[group] = number;
}

void RankStatus::set_waiting_for(std::string what) {
  const std::lock_guard lock(mutex_);
  report_.waiting_for = std::move(what);
  if (long_works_ > 0) {
    long_work_end_ = report_.waiting_for.empty()
        ? long_work_limit_
        : std::min(*long_work_end_, std::chrono::steady_clock::now());
  }
}

void RankStatus::begin_long_work(std::string what, std::chrono::steady_clock::time_point limit) {
  const std::lock_guard lock(mutex_);
  if (long_works_++ == 0) {
    report_.long_work = std::move(what);
    long_work_limit_ = limit;
    long_work_end_ = limit;
  }
}

void RankStatus::end_long_work() {
  const std::lock_guard lock(mutex_);
  if (--long_works_ == 0) {
    report_.long_work.clear();
    long_work_end_ = std::min(*long_work_end_, std::chrono::steady_clock::now());
  }
}

RankStatus::Report RankStatus::report() const {
  const std::lock_guard lock(mutex_);
  Report report = report_;
  if (long_work_end_) {
    const auto since = std::chrono::duration_cast<std::chrono::milliseconds>(
        std::chrono::steady_clock::now() - *long_work_end_);
    report.since_long_work = std::max<int64_t>(since.count(), 0);
    if (since.count() > 0) {
      report.long_work.clear();
    }
  }
  return report;
}

std::string encode(const RankStatus::Report& report) {
  return nlohmann::json{
      {"phase", report.place.phase},
      {"step", report.place.step},
      {"operation", report.place.operation},
      {"waiting_for", report.waiting_for},
      {"long_work", report.long_work},
      {"since_long_work", report.since_long_work},
      {"issued", report.issued}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

RankStatus::Report decode_report(const std::string& text) {
  const nlohmann::json json = nlohmann::json::parse(text);
  return {
      .place =
          {.phase = json.at("phase"), .step = json.at("step"), .operation = json.at("operation")},
      .waiting_for = json.at("waiting_for"),
      .long_work = json.at("long_work"),
      .since_long_work = json.at("since_long_work"),
      .issued = json.at("issued")};
}

std::string describe(const RankStatus::Report& report) {
  const RankStatus::Place& place = report.place;
  std::string text = place.phase.empty() ? "at an unnamed place" : "at " + place.phase;
  if (place.step >= 0) {
    text += fmt::format(" of step {}", place.step);
  }
  if (place.operation >= 0) {
    text += fmt::format(" (operation {})", place.operation);
  }
  if (!report.waiting_for.empty()) {
    text += ", waiting for " + report.waiting_for;
  }
  if (!report.long_work.empty()) {
    text += ", in declared long work: " + report.long_work;
  }
  return text;
}

} // namespace palimpsest
