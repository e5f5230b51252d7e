#pragma once

// Runs of several ranks, as threads of the test.

#include <palimpsest/tests/launcher/run/run_testing.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <mutex>

namespace palimpsest::testing {

/// What rank 0 sees of a run of several ranks into `folder`; `parameters` are put together from all
/// ranks. With `anew` an earlier run's folder is removed first.
inline Finished train_on(
    int count,
    const std::string& yaml,
    const TestFolder& folder,
    const std::vector<std::string>& overrides = {},
    bool anew = true) {
  Finished finished;
  if (anew) {
    std::filesystem::remove_all(folder / "run");
  }
  std::mutex mutex;
  on_ranks(count, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = count, .threads = 1});
    Run run(run_config(yaml, folder, overrides), ranks);
    run.dump_gradients(folder / "gradients.safetensors");
    run.prepare();
    Records records;
    run.train({&records});
    run.write_model();
    const std::lock_guard lock(mutex);
    add_parameters(run, finished.parameters);
    if (ranks.leads()) {
      finished.records = std::move(records);
    }
  });
  finished.gradients = floats(folder / "gradients.safetensors");
  return finished;
}

} // namespace palimpsest::testing
