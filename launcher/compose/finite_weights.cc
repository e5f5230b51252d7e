#include <palimpsest/launcher/compose/finite_weights.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/finite.h>

#include <utility>

namespace palimpsest {

TensorFiller only_finite(
    TensorFiller fill,
    const std::filesystem::path& out,
    std::function<bool(const StoredTensor& tensor)> trained) {
  return [fill = std::move(fill), out, trained = std::move(trained)](
             const StoredTensor& tensor, std::span<std::byte> bytes) {
    fill(tensor, bytes);
    if (trained(tensor) && any_not_finite(bytes, tensor.dtype)) {
      throw EnvironmentError(
          "{}: no model is written, since {} holds NaN or infinity in {}; earlier models and "
          "checkpoints are kept; go on from one of them with a lower optimizer.learning_rate",
          out.string(),
          tensor.name,
          name_of(tensor.dtype));
    }
  };
}

} // namespace palimpsest
