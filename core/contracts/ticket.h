#pragma once

// One action in flight. An empty ticket is an action that was done when it was returned.
//
//   Ticket ticket = tier.write(...);
//   ...
//   ticket.wait();   // rethrows the action's error

#include <memory>
#include <utility>

namespace palimpsest {

class Ticket {
 public:
  /// The action behind a ticket.
  class Action {
   public:
    virtual ~Action() = default;
    virtual bool done() = 0; // also makes progress where nobody else does
    virtual void wait() = 0; // until done; rethrows its error
  };

  Ticket() = default;
  explicit Ticket(std::unique_ptr<Action> action) : action_(std::move(action)) {}
  Ticket(Ticket&&) = default;
  Ticket& operator=(Ticket&& other) noexcept {
    settle();
    action_ = std::move(other.action_);
    return *this;
  }
  /// Waits until completion: a buffer in flight must not be freed.
  ~Ticket() {
    settle();
  }

  bool done() {
    return action_ == nullptr || action_->done();
  }
  void wait() {
    if (action_ != nullptr) {
      const std::unique_ptr<Action> action = std::move(action_);
      action->wait();
    }
  }

 private:
  void settle() noexcept {
    try {
      wait();
    } catch (...) { // NOLINT(bugprone-empty-catch): whoever wanted the error has waited for it
    }
  }

  std::unique_ptr<Action> action_;
};

} // namespace palimpsest
