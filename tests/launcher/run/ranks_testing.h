#pragma once

// Runs of several ranks, as threads of the test.

#include <palimpsest/tests/launcher/run/run_testing.h>
#include <palimpsest/tests/support/ranks/ranks.h>

#include <mutex>
#include <string>
#include <vector>

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

/// The errors with which a run of several ranks ends, one of each; all know that they fail together.
inline std::vector<std::string> errors_on(
    int count,
    const std::string& yaml,
    const TestFolder& folder,
    const std::vector<std::string>& overrides) {
  std::mutex mutex;
  std::vector<std::string> errors;
  on_ranks(count, [&](Communicator& world, MemoryContext&) {
    Ranks ranks(world, {.ranks = count, .threads = 1});
    Run run(run_config(yaml, folder, overrides), ranks);
    run.prepare();
    try {
      run.train({});
    } catch (const EnvironmentError& error) {
      EXPECT_TRUE(ranks.failed_together());
      const std::lock_guard lock(mutex);
      errors.emplace_back(error.what());
    }
  });
  return errors;
}

} // namespace palimpsest::testing
