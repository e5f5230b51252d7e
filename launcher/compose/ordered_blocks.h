#pragma once

// Blocks of work that several threads do and one after the other hands over, in order.
//
//   for_ordered_blocks(blocks, threads,
//       [&](int64_t block, int thread) { return encode(block); },       // on any thread
//       [&](std::vector<int32_t>&& ids) { file.write(ids); });          // in order, one at a time
//
// What comes out depends on no number of threads, the error that is thrown included: it is that of
// the first block that fails. Each thread holds one block at a time.

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace palimpsest {

/// Calls `make(block, thread)` for the blocks 0 ... count - 1 on `threads` >= 1 threads, the caller's
/// one of them, and `take` with what it returned.
template <typename Make, typename Take>
void for_ordered_blocks(int64_t count, int threads, const Make& make, const Take& take) {
  std::mutex mutex;
  std::condition_variable turn_came;
  int64_t next = 0; // to be made
  int64_t turn = 0; // to be taken
  std::exception_ptr error;
  const auto work = [&](int thread) {
    std::unique_lock lock(mutex);
    while (next < count && !error) {
      const int64_t block = next++;
      lock.unlock();
      std::exception_ptr failure;
      decltype(make(block, thread)) made{};
      try {
        made = make(block, thread);
      } catch (...) {
        failure = std::current_exception();
      }
      lock.lock();
      turn_came.wait(lock, [&] { return turn == block || error; });
      if (error) {
        return;
      }
      try {
        if (failure) {
          std::rethrow_exception(failure);
        }
        take(std::move(made));
      } catch (...) {
        error = std::current_exception();
      }
      ++turn;
      turn_came.notify_all();
    }
  };
  {
    std::vector<std::jthread> others;
    for (int thread = 1; thread < threads; ++thread) {
      others.emplace_back(work, thread);
    }
    work(0);
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

} // namespace palimpsest
