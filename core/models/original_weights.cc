#include <palimpsest/core/models/original_weights.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/models/weights.h>

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace palimpsest {
namespace {

at::Tensor flat(int64_t count, at::ScalarType type) {
  return at::empty({count}, at::TensorOptions().dtype(type));
}

/// Whether the original's values, rounded as they were held, are these.
bool same_once_rounded(
    std::span<const std::byte> original,
    std::span<const std::byte> held,
    at::ScalarType type,
    const HeldAs& as) {
  constexpr size_t kPart = size_t{1} << 20; // elements: whole blocks of a codec
  const size_t width = c10::elementSize(type);
  for (size_t begin = 0; begin < original.size(); begin += kPart * width) {
    const size_t size = std::min(kPart * width, original.size() - begin);
    const at::Tensor values = flat(static_cast<int64_t>(size / width), type);
    std::memcpy(values.mutable_data_ptr(), original.data() + begin, size);
    const at::Tensor then = once_rounded(values, as);
    if (std::memcmp(then.const_data_ptr(), held.data() + begin, size) != 0) {
      return false;
    }
  }
  return true;
}

} // namespace

at::Tensor once_rounded(const at::Tensor& values, const HeldAs& as) {
  const at::Tensor wide = values.to(at::kFloat);
  if (as.codec == nullptr) {
    return wide.to(as.type).to(values.scalar_type());
  }
  const at::Tensor codes = flat(as.codec->held(wide.numel()), as.codec->dtype());
  as.codec->encode(wide, codes);
  at::Tensor decoded = flat(wide.numel(), at::kFloat);
  as.codec->decode(codes, decoded);
  return decoded.to(values.scalar_type());
}

TensorFiller original_where_frozen(
    TensorFiller held,
    const HfFolder& folder,
    FrozenParameters frozen) {
  return [held = std::move(held), &folder, frozen = std::move(frozen)](
             const StoredTensor& tensor, std::span<std::byte> bytes) {
    held(tensor, bytes);
    for (const std::string& name : model_names(tensor.name)) {
      const auto found = folder.tensors().find(name);
      if (found == folder.tensors().end()) {
        continue;
      }
      const std::optional<HeldAs> as = frozen(name);
      if (!as || found->second.tensor.dtype != tensor.dtype) {
        return;
      }
      const auto original = folder.bytes(name);
      if (!same_once_rounded(original, bytes, scalar_type(tensor), *as)) {
        throw UserError(
            "{}: {} is no longer what training began with, and as it is not trained it would be "
            "written as it is there; put the folder back as it was, or move it away and export a "
            "checkpoint: it then holds what training computed with",
            folder.path().string(),
            name);
      }
      std::ranges::copy(original, bytes.begin());
      folder.forget(name);
      return;
    }
  };
}

} // namespace palimpsest
