#include <palimpsest/launcher/compose/rank_session.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/show.h>
#include <palimpsest/launcher/compose/fair_threads.h>
#include <palimpsest/parallel/comm/connect.h>
#include <palimpsest/parallel/comm/fingerprint.h>
#include <palimpsest/parallel/comm/mpi.h>

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <chrono>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

class StatusObserver final : public Observer {
 public:
  StatusObserver(RankStatus& status, int64_t step) : status_(status), step_(step) {
    begin_step();
  }
  void op_begin(size_t index, const Op& op) override {
    status_.set_place(
        {.phase = to_text(op), .step = step_, .operation = static_cast<int64_t>(index)});
  }
  void step_end(const StepRecord& record) override {
    step_ = record.step + 1;
    begin_step();
  }

 private:
  /// Until the first operation: what observers do after a step, and the loading of the next samples.
  void begin_step() {
    status_.set_place({.phase = "the start", .step = step_});
  }

  RankStatus& status_;
  int64_t step_;
};

WorldSettings world_settings(const RankEnvironment& environment, const RunConfig& config) {
  WorldSettings settings;
  settings.rank = environment.rank;
  settings.world_size = environment.world_size;
  settings.local_rank = environment.local_rank;
  settings.backend = config.parallel().backend();
  settings.address = environment.address;
  settings.port = environment.port;
  settings.listen_fd = environment.listen_fd;
  settings.agent_store = environment.agent_store;
  settings.attempt = environment.attempt;
  settings.mpi_launched = environment.mpi_launched;
  settings.timeout = std::chrono::seconds(config.parallel().timeout());
  settings.startup_timeout = std::chrono::seconds(config.parallel().startup_timeout());
  settings.checked = config.parallel().check_operations();
  return settings;
}

} // namespace

bool can_use_mpi() {
  return has_mpi();
}

int leave_word_to_others(const Error& error) {
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  return error.exit_code();
}

RankSession::RankSession(
    RankEnvironment environment,
    RunConfig config,
    std::string build,
    OnSignal on_signal)
    : config_(std::move(config)), build_(std::move(build)), environment_(std::move(environment)),
      lifeline_(launchers_of(environment_)), status_(std::make_shared<RankStatus>()) {
  if (on_signal == OnSignal::kStopWhereSafe) {
    stop_.emplace();
  }
  if (environment_.world_size > 1) {
    WorldSettings settings = world_settings(environment_, config_);
    settings.status = status_;
    world_ = connect(settings);
  }
}

void RankSession::compare_ranks(Ranks& ranks) const {
  std::map<std::string, std::string> facts = {{"build", build_}};
  ranks.together([&] {
    std::istringstream text(config_text(config_, ranks.size()));
    int number = 0;
    for (std::string line; std::getline(text, line);) {
      facts[fmt::format("config, line {}", ++number)] = line;
    }
  });
  ranks.alike([&] { require_same(*world_, facts); });
}

Observer& RankSession::status(int64_t step) {
  status_observer_ = std::make_unique<StatusObserver>(*status_, step);
  return *status_observer_;
}

int RankSession::run(const std::function<int(Ranks& ranks)>& body) {
  Ranks::Here here;
  here.stop_requested = [this] { return stop_ && stop_->requested(); };
  here.status = status_.get();
  if (world_ == nullptr) {
    Ranks ranks(here);
    return body(ranks);
  }
  here.ranks = environment_.local_world_size;
  here.threads = fair_threads(*world_);
  Ranks ranks(*world_, here);
  const bool leads = ranks.leads();
  try {
    compare_ranks(ranks);
    return body(ranks);
  } catch (const Error& error) {
    if (ranks.failed_together()) {
      world_.reset();
      if (leads) {
        throw;
      }
      return leave_word_to_others(error);
    }
    world_->abort(error.what());
    throw Error(fmt::format("rank {}: {}", ranks.rank(), error.what()), error.exit_code());
  } catch (const c10::Error& error) {
    world_->abort(error.what_without_backtrace());
    throw;
  } catch (const std::exception& error) {
    world_->abort(error.what());
    throw;
  }
}

} // namespace palimpsest
