#include <palimpsest/core/optim/shard_update.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <utility>

namespace palimpsest {

namespace {

void check_buffer(
    const at::Tensor& buffer,
    std::initializer_list<at::ScalarType> dtypes,
    int64_t numel,
    const char* name) {
  std::string allowed;
  for (const at::ScalarType dtype : dtypes) {
    allowed += (allowed.empty() ? "" : " or ") + std::string(c10::toString(dtype));
  }
  check(
      buffer.defined() && std::ranges::count(dtypes, buffer.scalar_type()) == 1 &&
          buffer.dim() == 1 && buffer.numel() == numel && buffer.is_contiguous(),
      "the shard's {} must be flat {} of {} elements",
      name,
      allowed,
      numel);
}

void check_shard(const ParamShard& shard, int moment_count) {
  const bool has_master = shard.master.defined();
  const int64_t numel = shard.parameters.numel();
  const auto other = has_master ? at::kHalf : at::kFloat;
  check_buffer(shard.parameters, {at::kBFloat16, other}, numel, "parameters");
  if (has_master) {
    check_buffer(shard.master, {at::kFloat}, numel, "master");
  }
  check_buffer(shard.gradient, {at::kFloat, at::kBFloat16}, numel, "gradient");
  check(
      std::cmp_equal(shard.moments.size(), moment_count),
      "{} moments where the optimizer has {}",
      shard.moments.size(),
      moment_count);
  for (const at::Tensor& moment : shard.moments) {
    check_buffer(moment, {at::kFloat, at::kBFloat16}, numel, "moments");
  }
  int64_t covered = 0;
  for (const GroupRange& group : shard.groups) {
    check(
        group.begin == covered && group.end > group.begin,
        "group [{}, {}) behind element {}",
        group.begin,
        group.end,
        covered);
    covered = group.end;
  }
  check(covered == numel, "groups cover {} of {} elements", covered, numel);
}

} // namespace

void for_each_group(
    const ParamShard& shard,
    int moment_count,
    uint64_t seed,
    const std::function<void(const GroupRange&, const UpdateBuffers&)>& update) {
  check_shard(shard, moment_count);
  const bool has_master = shard.master.defined();
  for (const GroupRange& group : shard.groups) {
    const auto part = [&](const at::Tensor& flat) {
      return flat.narrow(0, group.begin, group.end - group.begin);
    };
    UpdateBuffers buffers;
    buffers.weights = part(has_master ? shard.master : shard.parameters);
    buffers.gradient = part(shard.gradient);
    for (const at::Tensor& moment : shard.moments) {
      buffers.moments.push_back(part(moment));
    }
    if (has_master) {
      buffers.copy = part(shard.parameters);
    }
    buffers.rounding = {
        .seed = seed,
        .unit = static_cast<uint32_t>(shard.unit),
        .first = shard.begin + group.begin};
    update(group, buffers);
  }
}

} // namespace palimpsest
