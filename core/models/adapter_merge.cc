#include <palimpsest/core/models/adapter_merge.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/weights.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

namespace palimpsest {
namespace {

/// Adds scale * left right [M,r] [r,N] to a matrix [M,N] of a file's type, in its bytes.
void add_product(
    const StoredTensor& stored,
    std::span<std::byte> bytes,
    const at::Tensor& left,
    const at::Tensor& right,
    double scale) {
  constexpr int64_t kPart = int64_t{1} << 20;
  const int64_t columns = stored.shape[1];
  const int64_t rows = std::max<int64_t>(1, kPart / std::max<int64_t>(columns, 1));
  for (int64_t first = 0; first < stored.shape[0]; first += rows) {
    const int64_t count = std::min(rows, stored.shape[0] - first);
    const at::Tensor part =
        at::empty({count, columns}, at::TensorOptions().dtype(scalar_type(stored)));
    std::byte* place = bytes.data() + static_cast<size_t>(first) * (part.nbytes() / count);
    std::memcpy(part.mutable_data_ptr(), place, part.nbytes());
    at::Tensor sum = part.to(at::kFloat);
    sum.addmm_(left.narrow(0, first, count), right, 1, scale);
    part.copy_(sum);
    std::memcpy(place, part.const_data_ptr(), part.nbytes());
  }
}

} // namespace

std::string adapted_layer(const AdapterSet& set, const std::string& stored) {
  constexpr std::string_view kWeight = ".weight";
  for (const std::string& name : model_names(stored)) {
    if (name.ends_with(kWeight)) {
      std::string layer = name.substr(0, name.size() - kWeight.size());
      if (set.layers.contains(layer)) {
        return layer;
      }
    }
  }
  return {};
}

TensorFiller merge_adapters(
    TensorFiller base,
    AdapterSet set,
    bool weights_in_out,
    AdapterSource adapter) {
  return
      [base = std::move(base), set = std::move(set), weights_in_out, adapter = std::move(adapter)](
          const StoredTensor& stored, std::span<std::byte> bytes) {
        base(stored, bytes);
        const std::string layer = adapted_layer(set, stored.name);
        if (layer.empty()) {
          return;
        }
        check(stored.shape.size() == 2, "{} is no matrix", stored.name);
        const AdapterShape& shape = set.layers.at(layer);
        const AdapterTensors names = adapter_tensors({.name = layer}, shape);
        const at::Tensor a = adapter(names.a.name);
        const at::Tensor b = adapter(names.b.name);
        if (weights_in_out) {
          add_product(stored, bytes, a.t(), b.t(), set.scale(shape));
        } else {
          add_product(stored, bytes, b, a, set.scale(shape));
        }
      };
}

} // namespace palimpsest
