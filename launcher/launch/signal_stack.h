#pragma once

// A stack of their own for signal handlers, for a thread that computes: oneDNN's generated code keeps
// data below its stack pointer, or moves that elsewhere, where a handler on the thread's own stack
// would write over them. The kernel gives a signal to the process to main's thread where that does not
// block it; so a handler must not block its own signal, or a second one meets a thread without such
// a stack.
//
//   SignalStack stack;                          // in main's thread, before sigaction()
//   action.sa_flags = SA_ONSTACK | SA_NODEFER | ...;

#include <csignal>
#include <cstddef>
#include <memory>

namespace palimpsest {

/// This thread's for as long as it lives; afterwards the old one.
class SignalStack {
 public:
  SignalStack();
  SignalStack(const SignalStack&) = delete;
  SignalStack& operator=(const SignalStack&) = delete;
  ~SignalStack();

 private:
  std::unique_ptr<std::byte[]> bytes_;
  stack_t previous_ = {};
};

} // namespace palimpsest
