#pragma once

// Ctrl-C as a wish that the program may grant in its own way, for a program that talks to its user.
//
//   Interrupt interrupt;                       // once, in main's thread
//   while (generating() && !interrupt.came()) { ... }
//   interrupt.take();                          // forgets it
//
// A system call that waits (read) ends with EINTR, so that a wait for input ends too.

#include <palimpsest/launcher/launch/signal_stack.h>

#include <csignal>

namespace palimpsest {

/// The handler is there for as long as it lives; afterwards the old one. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  bool came() const;
  /// Whether it came, and forgets it.
  bool take();

 private:
  SignalStack stack_;
  struct sigaction previous_ = {};
};

} // namespace palimpsest
