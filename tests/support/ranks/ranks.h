#pragma once

// Ranks as threads, each with its own memory counters and without worker threads.
//
//   on_ranks(4, [](Communicator& world, MemoryContext& memory) { ... world.rank() ... });
//   on_ranks(4, [](std::unique_ptr<Communicator> world, MemoryContext& memory) { ... });   // to decorate it

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/device.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/parallel/comm/in_process.h>

#include <fmt/format.h>

#include <exception>
#include <memory>
#include <mutex>
#include <thread>
#include <type_traits>
#include <utility>
#include <vector>

namespace palimpsest::testing {

/// Runs the body on every rank of a fresh world. Where one throws, all end, and the first error is
/// thrown again.
template <typename Body>
void on_ranks(int count, const Body& body) {
  install_cpu_allocator();
  auto world = in_process_world(count);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryContext memory(fmt::format("rank {}", rank));
      const ScopedContext here(memory);
      set_threads(1);
      std::unique_ptr<Communicator> own = std::move(world[static_cast<size_t>(rank)]);
      // the body may take the world away: this one ends the others
      const std::unique_ptr<Communicator> alarm = own->split(0, rank, "alarm");
      try {
        if constexpr (std::is_invocable_v<Body, Communicator&, MemoryContext&>) {
          body(*own, memory);
        } else {
          body(std::move(own), memory);
        }
      } catch (const std::exception& error) {
        const std::scoped_lock lock(mutex);
        if (first == nullptr) {
          first = std::current_exception();
        }
        alarm->abort(error.what());
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (first != nullptr) {
    std::rethrow_exception(first);
  }
}

} // namespace palimpsest::testing
