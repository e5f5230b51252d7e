#include <palimpsest/parallel/comm/ordered_sum.h>

#include <palimpsest/core/base/error.h>

#include <ATen/Parallel.h>
#include <c10/core/ScalarType.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <algorithm>
#include <array>
#include <type_traits>

namespace palimpsest {

namespace {

/// Elements at a time: the accumulators stay in the first-level cache.
constexpr int64_t kBlock = 2048;
/// What is worth a thread of its own.
constexpr int64_t kGrain = 65'536;

template <typename T, typename Sum>
void add_parts(std::span<const void* const> parts, Sum* onto, int64_t begin, int64_t end) {
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t stop = std::min(first + kBlock, end);
    for (const void* part : parts) {
      const T* const source = static_cast<const T*>(part);
      for (int64_t i = first; i < stop; ++i) {
        onto[i] = static_cast<Sum>(static_cast<float>(onto[i]) + static_cast<float>(source[i]));
      }
    }
  }
}

template <ReduceOp op, typename Sum>
Sum combine(Sum left, Sum right) {
  if constexpr (op == ReduceOp::kSum) {
    return static_cast<Sum>(left + right);
  } else if constexpr (op == ReduceOp::kMax) {
    return left > right ? left : right;
  } else {
    return left < right ? left : right;
  }
}

template <typename T, ReduceOp op>
void reduce_parts(std::span<const void* const> parts, T* result, int64_t begin, int64_t end) {
  using Sum = std::conditional_t<sizeof(T) == 2, float, T>;
  std::array<Sum, kBlock> sums;
  for (int64_t first = begin; first < end; first += kBlock) {
    const int64_t count = std::min(kBlock, end - first);
    const T* source = static_cast<const T*>(parts[0]) + first;
    for (int64_t i = 0; i < count; ++i) {
      sums[i] = static_cast<Sum>(source[i]);
    }
    for (const void* part : parts.subspan(1)) {
      source = static_cast<const T*>(part) + first;
      for (int64_t i = 0; i < count; ++i) {
        sums[i] = combine<op>(sums[i], static_cast<Sum>(source[i]));
      }
    }
    for (int64_t i = 0; i < count; ++i) {
      result[first + i] = static_cast<T>(sums[i]);
    }
  }
}

template <typename T>
void reduce_typed(std::span<const void* const> parts, ReduceOp op, void* result, int64_t n) {
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    T* const typed = static_cast<T*>(result);
    switch (op) {
      case ReduceOp::kSum:
        return reduce_parts<T, ReduceOp::kSum>(parts, typed, begin, end);
      case ReduceOp::kMax:
        return reduce_parts<T, ReduceOp::kMax>(parts, typed, begin, end);
      case ReduceOp::kMin:
        return reduce_parts<T, ReduceOp::kMin>(parts, typed, begin, end);
    }
  });
}

template <typename Sum>
void add_typed(std::span<const void* const> parts, at::ScalarType dtype, Sum* onto, int64_t n) {
  at::parallel_for(0, n, kGrain, [&](int64_t begin, int64_t end) {
    switch (dtype) {
      case at::kFloat:
        return add_parts<float>(parts, onto, begin, end);
      case at::kBFloat16:
        return add_parts<c10::BFloat16>(parts, onto, begin, end);
      case at::kHalf:
        return add_parts<c10::Half>(parts, onto, begin, end);
      default:
        check(false, "a sum of {}", c10::toString(dtype));
    }
  });
}

} // namespace

void add_in_order(
    std::span<const void* const> parts,
    at::ScalarType dtype,
    void* onto,
    at::ScalarType onto_dtype,
    int64_t n) {
  check(
      onto_dtype == at::kFloat || onto_dtype == at::kBFloat16,
      "a sum in {}",
      c10::toString(onto_dtype));
  if (onto_dtype == at::kFloat) {
    add_typed(parts, dtype, static_cast<float*>(onto), n);
  } else {
    add_typed(parts, dtype, static_cast<c10::BFloat16*>(onto), n);
  }
}

void reduce_in_order(
    std::span<const void* const> parts,
    at::ScalarType dtype,
    ReduceOp op,
    void* result,
    int64_t n) {
  switch (dtype) {
    case at::kByte:
      return reduce_typed<uint8_t>(parts, op, result, n);
    case at::kInt:
      return reduce_typed<int32_t>(parts, op, result, n);
    case at::kLong:
      return reduce_typed<int64_t>(parts, op, result, n);
    case at::kHalf:
      return reduce_typed<c10::Half>(parts, op, result, n);
    case at::kBFloat16:
      return reduce_typed<c10::BFloat16>(parts, op, result, n);
    case at::kFloat:
      return reduce_typed<float>(parts, op, result, n);
    case at::kDouble:
      return reduce_typed<double>(parts, op, result, n);
    default:
      check(false, "a reduction of {}", c10::toString(dtype));
  }
}

} // namespace palimpsest
