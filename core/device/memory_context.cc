#include <palimpsest/core/device/memory_context.h>

#include <palimpsest/core/device/allocator.h>
#include <palimpsest/core/device/ledger.h>
#include <palimpsest/core/device/relief.h>

#include <c10/util/Exception.h>
#include <omp.h>

#include <deque>
#include <memory>
#include <mutex>
#include <utility>

namespace palimpsest {

namespace {

struct ThreadTag {
  Ledger* ledger = nullptr;
  std::optional<Category> pinned;
};

thread_local constinit ThreadTag thread_tag;

/// Kept for the life of the process, on purpose: blocks and tagged threads may outlive their
/// context.
Ledger& make_ledger(std::string name) {
  static std::mutex mutex;
  static auto* const ledgers = new std::deque<Ledger>;
  const std::lock_guard lock(mutex);
  return ledgers->emplace_back(std::move(name));
}

} // namespace

std::string_view category_name(Category category) {
  switch (category) {
    case Category::kParameters:
      return "parameters";
    case Category::kGradients:
      return "gradients";
    case Category::kOptimizer:
      return "optimizer";
    case Category::kActivations:
      return "activations";
    case Category::kWorkspace:
      return "workspace";
    case Category::kCommunication:
      return "communication";
    case Category::kUnattributed:
      break;
  }
  return "unattributed";
}

AllocationHook fail_at_allocation(int64_t k) {
  return [k, count = std::make_shared<std::atomic<int64_t>>(0)](int64_t bytes) {
    TORCH_CHECK_WITH(
        OutOfMemoryError,
        ++*count != k,
        "injected failure of allocation ",
        k,
        ", which wanted ",
        bytes,
        " bytes");
  };
}

Ledger::Tag Ledger::of_this_thread() {
  static Ledger& process = *MemoryContext::process().ledger_;
  Ledger* ledger = thread_tag.ledger;
  if (ledger == nullptr || ledger->closed.load(std::memory_order_acquire)) {
    return {&process, Category::kUnattributed};
  }
  return {ledger, thread_tag.pinned.value_or(ledger->category.load(std::memory_order_relaxed))};
}

void Ledger::charge(int64_t bytes, Category as) {
  if (has_hook.load(std::memory_order_acquire)) {
    try {
      hook(bytes);
    } catch (...) {
      note_refusal(bytes, as, live);
      throw;
    }
  }
  int64_t before = live.load(std::memory_order_relaxed);
  for (;;) {
    const int64_t most = limit.load(std::memory_order_relaxed);
    if (bytes > most - before) {
      if (relieve()) {
        before = live.load(std::memory_order_relaxed);
        continue;
      }
      note_refusal(bytes, as, before);
      TORCH_CHECK_WITH(
          OutOfMemoryError,
          false,
          name,
          ": out of memory: ",
          bytes,
          " bytes wanted (",
          category_name(as),
          "), ",
          before,
          " live, limit ",
          most);
    }
    if (live.compare_exchange_weak(before, before + bytes, std::memory_order_relaxed)) {
      break;
    }
  }
  raise_to(peak, before + bytes);
  raise_to(interval_peak, before + bytes);

  Counter& counter = (*this)[as];
  raise_to(counter.peak, counter.live.fetch_add(bytes, std::memory_order_relaxed) + bytes);
  counter.allocations.fetch_add(1, std::memory_order_relaxed);
}

void Ledger::discharge(int64_t bytes, Category as) {
  live.fetch_sub(bytes, std::memory_order_relaxed);
  (*this)[as].live.fetch_sub(bytes, std::memory_order_relaxed);
}

void Ledger::note_refusal(int64_t bytes, Category as, int64_t held) {
  RefusedAllocation refused{.bytes = bytes, .category = as, .live = held, .limit = limit};
  for (size_t index = 0; index < by_category.size(); ++index) {
    refused.by_category[index] = by_category[index].live;
  }
  const std::lock_guard lock(refusal_mutex_);
  refusal_ = refused;
}

std::optional<RefusedAllocation> Ledger::take_refusal() {
  const std::lock_guard lock(refusal_mutex_);
  return std::exchange(refusal_, std::nullopt);
}

void Ledger::move(int64_t bytes, Category from, Category to) {
  (*this)[from].live.fetch_sub(bytes, std::memory_order_relaxed);
  Counter& counter = (*this)[to];
  raise_to(counter.peak, counter.live.fetch_add(bytes, std::memory_order_relaxed) + bytes);
}

MemoryContext::MemoryContext(std::string name) : ledger_(&make_ledger(std::move(name))) {}

MemoryContext::~MemoryContext() {
  ledger_->closed.store(true, std::memory_order_release);
}

MemoryContext& MemoryContext::process() {
  static auto* const context =
      new MemoryContext("process"); // never closed: the last resort of every thread
  return *context;
}

const std::string& MemoryContext::name() const {
  return ledger_->name;
}

MemoryUsage MemoryContext::usage(Category category) const {
  const Ledger::Counter& counter = (*ledger_)[category];
  return {counter.live, counter.peak, counter.allocations};
}

MemoryUsage MemoryContext::total() const {
  MemoryUsage usage{ledger_->live, ledger_->peak, 0};
  for (const Ledger::Counter& counter : ledger_->by_category) {
    usage.allocations += counter.allocations;
  }
  return usage;
}

void MemoryContext::reset_peaks() {
  ledger_->peak = ledger_->live.load();
  for (Ledger::Counter& counter : ledger_->by_category) {
    counter.peak = counter.live.load();
  }
}

void MemoryContext::begin_interval() {
  ledger_->interval_peak = ledger_->live.load();
}

int64_t MemoryContext::interval_peak() const {
  return ledger_->interval_peak;
}

void MemoryContext::set_limit(int64_t bytes) {
  ledger_->limit = bytes;
}

int64_t MemoryContext::limit() const {
  return ledger_->limit;
}

std::optional<RefusedAllocation> MemoryContext::take_refusal() {
  return ledger_->take_refusal();
}

void MemoryContext::set_allocation_hook(AllocationHook hook) {
  ledger_->has_hook = false;
  ledger_->hook = std::move(hook);
  ledger_->has_hook = static_cast<bool>(ledger_->hook);
}

Category MemoryContext::category() const {
  return ledger_->category;
}

ScopedContext::ScopedContext(MemoryContext& context, std::optional<Category> pinned)
    : previous_(thread_tag.ledger), previous_pinned_(thread_tag.pinned) {
  thread_tag = {context.ledger_, pinned};
}

ScopedContext::~ScopedContext() {
  thread_tag = {previous_, previous_pinned_};
}

ScopedCategory::ScopedCategory(MemoryContext& context, Category category)
    : ledger_(context.ledger_), previous_(ledger_->category.exchange(category)) {}

ScopedCategory::~ScopedCategory() {
  ledger_->category = previous_;
}

void adopt_openmp_workers(MemoryContext& context) {
  Ledger* const ledger = context.ledger_;
#pragma omp parallel
  {
    if (omp_get_thread_num() != 0) {
      thread_tag = {ledger, std::nullopt};
    }
  }
}

void adopt_openmp_workers() {
  const ThreadTag tag = thread_tag;
#pragma omp parallel
  thread_tag = tag;
}

bool retag(const c10::Storage& storage, Category category) {
  const c10::DataPtr& block = storage.data_ptr();
  if (!block || block.get_deleter() != CpuAllocator::instance().raw_deleter()) {
    return false;
  }
  BlockOwner& owner = owner_of(block.get_context());
  owner.ledger->move(owner.bytes, owner.category, category);
  owner.category = category;
  return true;
}

} // namespace palimpsest
