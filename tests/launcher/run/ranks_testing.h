#pragma once

// Runs of several ranks, as threads of the test.

#include <palimpsest/parallel/comm/in_process.h>
#include <palimpsest/tests/launcher/run/run_testing.h>

#include <exception>
#include <functional>
#include <mutex>
#include <thread>

namespace palimpsest::testing {

/// Runs `body` as each rank of a world; rethrows the first rank's error once all have ended.
inline void on_ranks(int count, const std::function<void(Ranks& ranks)>& body) {
  const auto world = in_process_world(count);
  std::vector<std::exception_ptr> failures(world.size());
  std::vector<std::thread> threads;
  for (size_t rank = 0; rank < world.size(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        Ranks ranks(*world[rank], {.ranks = count, .threads = 1});
        body(ranks);
      } catch (const std::exception& error) {
        failures[rank] = std::current_exception();
        world[rank]->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const std::exception_ptr& failure : failures) {
    if (failure != nullptr) {
      std::rethrow_exception(failure);
    }
  }
}

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
  on_ranks(count, [&](Ranks& ranks) {
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
