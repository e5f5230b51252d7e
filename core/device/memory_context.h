#pragma once

// Who holds how many bytes. Every block that the CPU allocator hands out is charged to a context
// (one per rank; ranks may be threads of one process) and to a category of it, and is charged back
// from whichever thread frees it. Bytes are the bytes asked for, so they can be predicted exactly.
//
//   MemoryContext memory("rank 0");
//   ScopedContext here(memory);                       // this thread allocates for rank 0 ...
//   adopt_openmp_workers(memory);                     // ... and so do its OpenMP workers
//   {
//     ScopedCategory workspace(memory, Category::kWorkspace);
//     memory.begin_interval();
//     output = forward(input);
//     retag(output.storage(), Category::kActivations); // the output stays, the rest was scratch
//   }
//   memory.usage(Category::kActivations).live, memory.interval_peak(), memory.total().peak
//
// A second context of the same rank accounts for another tier: "rank 0, host" while buffers in host
// memory are allocated.

#include <c10/core/Storage.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>

namespace palimpsest {

class Ledger; // the counters, core/device/ledger.h

enum class Category : uint8_t {
  kParameters,
  kGradients,
  kOptimizer,
  kActivations,
  kWorkspace,
  kCommunication,
  kUnattributed,
};
inline constexpr std::array kMemoryCategories = {
    Category::kParameters,
    Category::kGradients,
    Category::kOptimizer,
    Category::kActivations,
    Category::kWorkspace,
    Category::kCommunication,
    Category::kUnattributed,
};

/// "parameters", "gradients", ...
std::string_view category_name(Category category);

struct MemoryUsage {
  int64_t live = 0; // bytes held now
  int64_t peak = 0; // highest `live` since the start or reset_peaks()
  int64_t allocations = 0; // since the start
};

/// An allocation that did not happen, and what was held then.
struct RefusedAllocation {
  int64_t bytes = 0; // wanted
  Category category = Category::kUnattributed; // for this
  int64_t live = 0; // bytes held then, all categories
  int64_t limit = 0;
  std::array<int64_t, kMemoryCategories.size()> by_category = {}; // of `live`, by Category
};

/// Called with the bytes wanted before each allocation of a context; what it throws, the allocation
/// throws.
using AllocationHook = std::function<void(int64_t bytes)>;

/// The hook that lets memory run out (c10::OutOfMemoryError) at the k-th allocation from now, once;
/// k counts from 1.
AllocationHook fail_at_allocation(int64_t k);

/// The counters of one rank. All methods may be called from any thread while others allocate,
/// except where noted.
class MemoryContext {
 public:
  /// `name` appears in messages: "rank 0".
  explicit MemoryContext(std::string name);
  /// Blocks may outlive their context; threads still tagged with it fall back to process().
  ~MemoryContext();
  MemoryContext(const MemoryContext&) = delete;
  MemoryContext& operator=(const MemoryContext&) = delete;

  /// Catches, as unattributed, what threads without a context allocate.
  static MemoryContext& process();

  const std::string& name() const;
  MemoryUsage usage(Category category) const;
  MemoryUsage total() const;
  /// Forgets the peaks: each becomes what is live now.
  void reset_peaks();

  /// Marks the start of an interval, an op for instance.
  void begin_interval();
  /// The highest total of live bytes since begin_interval(), in bytes; at least what was live at
  /// the mark.
  int64_t interval_peak() const;

  /// Bytes that may be live at once. An allocation beyond throws c10::OutOfMemoryError naming the
  /// context, the bytes wanted, the bytes live and the limit, and leaves everything as it was.
  /// Unlimited at first.
  void set_limit(int64_t bytes);
  int64_t limit() const;

  /// The latest allocation that limit, hook or system has refused since the last call.
  std::optional<RefusedAllocation> take_refusal();

  /// Replaces the hook; an empty one removes it. Call it while no thread allocates for this
  /// context.
  void set_allocation_hook(AllocationHook hook);

  /// What this context's allocations are charged to now: unattributed unless a ScopedCategory says
  /// otherwise.
  Category category() const;

 private:
  friend class Ledger;
  friend class ScopedContext;
  friend class ScopedCategory;
  friend void adopt_openmp_workers(MemoryContext& context);
  Ledger* ledger_; // never freed: blocks and tagged threads outlive the context
};

/// While it lives, this thread allocates for `context`. `pinned` fixes the category for this
/// thread, whatever the context's is: for a communication thread beside the computing one. Scopes
/// nest.
class ScopedContext {
 public:
  explicit ScopedContext(MemoryContext& context, std::optional<Category> pinned = std::nullopt);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  Ledger* previous_;
  std::optional<Category> previous_pinned_;
};

/// While it lives, all threads of `context` allocate as `category`. Scopes nest; only the rank's
/// own thread opens them.
class ScopedCategory {
 public:
  ScopedCategory(MemoryContext& context, Category category);
  ~ScopedCategory();
  ScopedCategory(const ScopedCategory&) = delete;
  ScopedCategory& operator=(const ScopedCategory&) = delete;

 private:
  Ledger* ledger_;
  Category previous_;
};

/// Lets the OpenMP workers of the calling thread allocate for `context` from now on, in its current
/// category. Kernels allocate inside workers (flash attention's backward does), where a scope of
/// the calling thread is not seen. It costs one empty parallel region, so call it again whenever
/// workers may be new: when the number of threads grew (set_threads() does), and before each op
/// with three threads or more, since a library's region of fewer threads ends the others.
void adopt_openmp_workers(MemoryContext& context);

/// The same for the context, and the pinned category, that the calling thread has now.
void adopt_openmp_workers();

/// Moves a live storage's bytes to another category of the context that it was charged to. Returns
/// false, and does nothing, for a storage that the CPU allocator did not make (a mapped file, say)
/// or that is empty.
bool retag(const c10::Storage& storage, Category category);

} // namespace palimpsest
