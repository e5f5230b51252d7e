#pragma once

// Ranks as threads, each with its own memory counters.
//
//   on_ranks(4, [](Communicator& world, MemoryContext& memory) { ... world.rank() ... });

#include <palimpsest/core/contracts/communicator.h>
#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/parallel/comm/in_process.h>

#include <fmt/format.h>

#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace palimpsest::testing {

/// Runs the body on every rank of a fresh world. Where one throws, all end, and its error is thrown
/// again.
inline void on_ranks(
    int count,
    const std::function<void(Communicator& world, MemoryContext& memory)>& body) {
  install_cpu_allocator();
  const auto world = in_process_world(count);
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < count; ++rank) {
    threads.emplace_back([&, rank] {
      MemoryContext memory(fmt::format("rank {}", rank));
      const ScopedContext here(memory);
      try {
        body(*world[static_cast<size_t>(rank)], memory);
      } catch (const std::exception& error) {
        const std::scoped_lock lock(mutex);
        if (first == nullptr) {
          first = std::current_exception();
        }
        world[static_cast<size_t>(rank)]->abort(error.what());
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
