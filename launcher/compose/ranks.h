#pragma once

// The ranks that work on one run, and how they succeed or fail as one.
//
//   Ranks ranks(*world, {.ranks = 4, .threads = 2});
//   ranks.together([&] { check_folder(output); });    // where it throws on one rank, all throw
//
// A default one is a single process.

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/parallel/comm/rank_status.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>

namespace palimpsest {

class Ranks {
 public:
  struct Here {
    int ranks = 1; ///< on this machine: they share its memory
    int threads = 0; ///< of this rank; 0: as many as it has processors
    std::function<bool()> stop_requested =
        {}; ///< asked while the run is prepared, before each step and micro-batch of an evaluation
    RankStatus* status = nullptr; ///< where the others see what this rank does; outlives the ranks
  };

  /// A single process.
  explicit Ranks(Here here) : here_(std::move(here)) {}
  Ranks() : Ranks(Here()) {}
  /// `world` outlives the ranks.
  Ranks(Communicator& world, Here here)
      : world_(&world), rank_(world.rank()), size_(world.size()), here_(std::move(here)) {}
  /// Rank 0 of a job that is planned and never run, with so many threads a rank.
  static Ranks planned(int size, int threads) {
    Ranks ranks(Here{.threads = threads});
    ranks.size_ = size;
    ranks.planned_ = true;
    return ranks;
  }
  bool planned() const {
    return planned_;
  }

  int rank() const {
    return rank_;
  }
  int size() const {
    return size_;
  }
  const Here& here() const {
    return here_;
  }
  /// Writes what is written once: metrics, models, the screen.
  bool leads() const {
    return rank() == 0;
  }
  /// Null where there is nobody to talk to.
  Communicator* world() const {
    return world_;
  }

  /// Told, while data are read for the first time, which share of this rank's part is done.
  using Reading = std::function<void(const std::string& name, double done)>;
  void watch_reading(Reading reading) {
    reading_ = std::move(reading);
  }
  const Reading& reading() const {
    return reading_;
  }

  /// Told, before long work, what the user should know by then.
  using Telling = std::function<void(const std::string& text)>;
  void watch_telling(Telling telling) {
    telling_ = std::move(telling);
  }
  void tell(const std::string& text) const {
    if (telling_) {
      telling_(text);
    }
  }

  /// Declares, while it lives, work during which the other ranks wait without a time limit.
  std::unique_ptr<ScopedLongWork> long_work(const std::string& what) const {
    return here_.status == nullptr ? nullptr
                                   : std::make_unique<ScopedLongWork>(*here_.status, what);
  }

  /// Runs a part that talks to no other rank, but through sum(). Where it throws on some ranks, all
  /// throw the error of the first of them, which names its rank unless it is everybody's.
  void together(const std::function<void()>& part);
  /// Where this rank was asked to stop: an Error with kStoppedExitCode. Within together().
  void end_if_asked() const;
  /// The same on all ranks where one of them was: a run that has not begun has nothing to save.
  /// Collective, also within together().
  void end_if_any_asked() {
    together([this] { end_if_asked(); });
  }
  /// Adds numbers up over all ranks, in place. Within together(): where a rank has thrown already,
  /// all throw its error.
  void sum(std::span<int64_t> numbers);
  /// Runs a part that ends alike on all ranks by what it exchanges: its error is everybody's too.
  void alike(const std::function<void()>& part);
  /// Whether either has thrown: then every rank knows the error, and one tells it.
  bool failed_together() const {
    return failed_together_;
  }
  /// Its error was dealt with, on all ranks.
  void recover() {
    failed_together_ = false;
  }

 private:
  Communicator* world_ = nullptr;
  int rank_ = 0;
  int size_ = 1;
  Here here_;
  Reading reading_;
  Telling telling_;
  bool planned_ = false;
  bool failed_together_ = false;
};

/// Whether everybody gives true. Collective.
bool all_agree(Communicator& ranks, bool mine);

} // namespace palimpsest
