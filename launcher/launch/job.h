#pragma once

// Runs a launch: starts the ranks, passes signals on as requests to stop, ends all ranks when one
// fails, and says once what happened.
//
//   const LaunchPlan plan = plan_launch(options, environment);
//   run_job(plan, options, environment);        // returns when all ranks have ended with 0
//
// - SIGTERM, SIGINT, SIGHUP or SIGUSR1 to the launcher asks all ranks to stop (SIGTERM to each); they
//   have options.grace to save and end, then they are killed. A second one, more than half
//   a second after the first, ends all at once.
// - A rank that fails ends the job: the others have a second to say what they see, then they are
//   killed.
// - A launcher that is killed takes its ranks along (spawn.h, lifeline.h).

#include <palimpsest/launcher/launch/launch_plan.h>

namespace palimpsest {

/// Throws an Error whose message names the first rank that failed, its host, process, code or signal
/// and the last lines it printed, and whose exit code is that rank's own (128+n for signal n);
/// kStoppedExitCode where the ranks stopped on request; 128+n after a second signal n.
void run_job(const LaunchPlan& plan, const LaunchOptions& options, Environment environment);

} // namespace palimpsest
