#include <palimpsest/launcher/compose/agreed_cost.h>

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <chrono>
#include <limits>
#include <type_traits>
#include <vector>

namespace palimpsest {
namespace {

/// Every measured number, in one order. Bytes below 2^53 are exact in a double.
template <typename Visit>
void for_each_number(ModelCost& cost, Visit visit) {
  const auto tapes = [&](auto& numbers) {
    visit(numbers.none);
    visit(numbers.lean);
    visit(numbers.full);
  };
  visit(cost.batch_bytes);
  for (UnitCost& unit : cost.units) {
    visit(unit.update_workspace);
    visit(unit.update_seconds);
  }
  for (BlockCost& block : cost.blocks) {
    for (int64_t& bytes : block.value_bytes) {
      visit(bytes);
    }
    visit(block.lean_bytes);
    visit(block.full_bytes);
    visit(block.weight_jobs_bytes);
    tapes(block.forward_workspace);
    tapes(block.backward_workspace);
    visit(block.weight_workspace);
    visit(block.forward_seconds);
    visit(block.input_seconds);
    visit(block.weight_seconds);
    visit(block.lean_seconds);
    visit(block.forward_flops);
    tapes(block.value_seconds);
    visit(block.value_flops);
    visit(block.backward_flops);
    visit(block.lean_flops);
  }
}

} // namespace

void agree_on_cost(ModelCost& cost, Communicator& ranks) {
  std::vector<double> numbers;
  for_each_number(cost, [&](auto number) { numbers.push_back(static_cast<double>(number)); });
  at::Tensor largest = at::tensor(numbers, at::kDouble);
  ranks.all_reduce(largest, ReduceOp::kMax).wait();
  const double* next = largest.const_data_ptr<double>();
  for_each_number(cost, [&](auto& number) {
    number = static_cast<std::remove_reference_t<decltype(number)>>(*next++);
  });
}

LinkCosts measure_links(Communicator& ranks) {
  constexpr int64_t kBytes = int64_t{4} << 20;
  const at::Tensor mine = at::zeros({kBytes / ranks.size()}, at::kByte);
  const at::Tensor whole = at::zeros({mine.numel() * ranks.size()}, at::kByte);
  double best = std::numeric_limits<double>::infinity();
  for (int trial = 0; trial < 3; ++trial) {
    ranks.barrier().wait();
    const auto begin = std::chrono::steady_clock::now();
    ranks.all_gather(mine, whole).wait();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    best = std::min(best, took.count());
  }
  const at::Tensor slowest = at::tensor(best, at::kDouble);
  ranks.all_reduce(slowest, ReduceOp::kMax).wait();
  LinkCosts links;
  links.communication = slowest.item<double>() / static_cast<double>(whole.numel());
  // Threads that compute leave the engine none of a CPU's cores.
  links.communication_overlaps = false;
  return links;
}

} // namespace palimpsest
