#include <palimpsest/launcher/cli/interrupt.h>

#include <atomic>

namespace palimpsest {
namespace {

std::atomic<bool> interrupted = false; // a signal handler can reach nothing but statics
static_assert(std::atomic<bool>::is_always_lock_free);

void handle(int /*signal*/) {
  interrupted = true;
}

} // namespace

Interrupt::Interrupt() {
  interrupted = false;
  struct sigaction action = {};
  action.sa_handler = handle;
  action.sa_flags = SA_ONSTACK | SA_NODEFER; // without SA_RESTART
  sigemptyset(&action.sa_mask);
  sigaction(SIGINT, &action, &previous_);
}

Interrupt::~Interrupt() {
  sigaction(SIGINT, &previous_, nullptr);
}

bool Interrupt::came() const {
  return interrupted;
}

bool Interrupt::take() {
  return interrupted.exchange(false);
}

} // namespace palimpsest
