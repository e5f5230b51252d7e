#include <palimpsest/launcher/launch/signal_stack.h>

#include <unistd.h>

#include <algorithm>

namespace palimpsest {

SignalStack::SignalStack() {
  constexpr long kBytes = 64 << 10;
  const auto bytes = static_cast<size_t>(std::max(kBytes, sysconf(_SC_SIGSTKSZ)));
  bytes_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
  stack_t stack{};
  stack.ss_sp = bytes_.get();
  stack.ss_size = bytes;
  sigaltstack(&stack, &previous_);
}

SignalStack::~SignalStack() {
  sigaltstack(&previous_, nullptr);
}

} // namespace palimpsest
