#include <palimpsest/launcher/compose/checkpoint_export.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/models/weights.h>
#include <palimpsest/launcher/compose/finite_weights.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

/// The values of a parameter: its master where it has one. The wanted name is the model folder's.
StateDeclaration values_of(const CheckpointReader& reader, const StoredTensor& wanted) {
  for (const std::string& name : model_names(wanted.name)) {
    for (const std::string_view state : {kMasterState, kParameterState}) {
      const auto* found = find_state(reader.manifest(), name, state);
      if (found != nullptr && declaration_of(*found).shape == wanted.shape) {
        return declaration_of(*found);
      }
    }
  }
  throw UserError(
      "{} has no values of {} {}, which its model folder needs",
      reader.folder().string(),
      wanted.name,
      format_shape(wanted.shape));
}

/// Reads and rounds a tensor part by part, so that the whole of it exists only in the file's type.
TensorFiller filler(const CheckpointReader& reader) {
  return [&reader](const StoredTensor& wanted, std::span<std::byte> bytes) {
    constexpr int64_t kPart = int64_t{1} << 20;
    const StateDeclaration values = values_of(reader, wanted);
    const auto width = static_cast<size_t>(bits_per_element(wanted.dtype) / 8);
    const int64_t elements = values.elements();
    for (int64_t begin = 0; begin < elements; begin += kPart) {
      const int64_t count = std::min(kPart, elements - begin);
      at::Tensor stored = at::empty({count}, at::TensorOptions().dtype(scalar_type(values)));
      reader.read(
          values.name,
          values.state,
          begin,
          begin + count,
          {static_cast<std::byte*>(stored.mutable_data_ptr()), stored.nbytes()});
      at::Tensor rounded = at::empty({count}, at::TensorOptions().dtype(scalar_type(wanted)));
      rounded.copy_(stored);
      std::memcpy(
          bytes.data() + static_cast<size_t>(begin) * width,
          rounded.const_data_ptr(),
          rounded.nbytes());
    }
  };
}

} // namespace

ExportedCheckpoint export_checkpoint(const fs::path& path, const fs::path& out) {
  const CheckpointReader reader(find_checkpoint(path));
  const auto trained = [&](const StoredTensor& tensor) {
    return values_of(reader, tensor).trainable;
  };
  write_hf_folder(out, reader.model_layout(), only_finite(filler(reader), out, trained));
  return {reader.folder(), reader.info().run_id(), reader.info().step()};
}

} // namespace palimpsest
