#include <palimpsest/launcher/launch/signal_stack.h>

#include <gtest/gtest.h>

namespace palimpsest {
namespace {

/// This thread's stack for handlers.
stack_t present() {
  stack_t stack{};
  sigaltstack(nullptr, &stack);
  return stack;
}

volatile std::sig_atomic_t on_it = -1;

TEST(SignalStack, HandlersRunOnItForItsLife) {
  const stack_t before = present();
  {
    const SignalStack stack;
    EXPECT_EQ(present().ss_flags & SS_DISABLE, 0);
    EXPECT_NE(present().ss_sp, before.ss_sp);
    struct sigaction action {};
    action.sa_handler = [](int) { on_it = (present().ss_flags & SS_ONSTACK) != 0 ? 1 : 0; };
    for (const int flags : {0, SA_ONSTACK}) {
      action.sa_flags = flags;
      struct sigaction previous {};
      sigaction(SIGUSR2, &action, &previous);
      std::raise(SIGUSR2);
      sigaction(SIGUSR2, &previous, nullptr);
      EXPECT_EQ(on_it, flags == 0 ? 0 : 1);
    }
  }
  EXPECT_EQ(present().ss_sp, before.ss_sp);
  EXPECT_EQ(present().ss_flags, before.ss_flags);
}

} // namespace
} // namespace palimpsest
