#include <palimpsest/core/plan/lockstep.h>

#include <palimpsest/core/plan/simulation.h>

namespace palimpsest {

PlanReport simulate_lockstep(const Plans& plans, const Job& job, const LinkSeconds& seconds) {
  return Simulation(plans, job, seconds).run();
}

} // namespace palimpsest
