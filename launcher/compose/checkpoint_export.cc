#include <palimpsest/launcher/compose/checkpoint_export.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/io/checkpoint_folder.h>
#include <palimpsest/core/io/checkpoint_reader.h>
#include <palimpsest/core/io/decoder_config.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/io/hub_cache.h>
#include <palimpsest/core/io/peft_folder.h>
#include <palimpsest/core/models/adapter_merge.h>
#include <palimpsest/core/models/original_weights.h>
#include <palimpsest/core/models/weights.h>
#include <palimpsest/launcher/compose/finite_weights.h>
#include <palimpsest/launcher/compose/saved_values.h>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

namespace palimpsest {
namespace {

namespace fs = std::filesystem;

/// The values of a parameter: its master where it has one. The wanted name is the model folder's.
SavedValues values_of(const CheckpointReader& reader, const TensorDeclaration& wanted) {
  for (const std::string& name : model_names(wanted.name)) {
    if (auto found = find_values(reader, name, wanted.shape)) {
      return *std::move(found);
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
    const SavedValues values = values_of(reader, wanted);
    const auto width = static_cast<size_t>(bits_per_element(wanted.dtype) / 8);
    const int64_t elements = wanted.elements();
    for (int64_t begin = 0; begin < elements; begin += kPart) {
      const int64_t count = std::min(kPart, elements - begin);
      const at::Tensor rounded = at::empty({count}, at::TensorOptions().dtype(scalar_type(wanted)));
      read_values(reader, values, begin, rounded);
      std::memcpy(
          bytes.data() + static_cast<size_t>(begin) * width,
          rounded.const_data_ptr(),
          rounded.nbytes());
    }
  };
}

/// The model.path of the run; empty where it has none.
std::string model_path(const CheckpointReader& reader) {
  const std::string text = reader.config_text();
  if (text.empty()) { // of no run
    return {};
  }
  return load_config_text(text, (reader.folder() / kRunConfigName).string()).model().path();
}

/// The folder that the run's model came from, if it is still there.
std::optional<HfFolder> original_folder(const std::string& model, const std::string& config) {
  const auto path = model.empty() ? std::nullopt : find_model(model);
  if (!path) {
    return std::nullopt;
  }
  std::optional<HfFolder> folder(*path);
  settle_folder(*folder, parse_decoder_config(config, folder->config_path()));
  return folder;
}

/// Whether the checkpoint has less of a frozen tensor than its model's folder, whose layout it is.
bool rounds_frozen(const CheckpointReader& reader, const HfFolderLayout& layout) {
  return std::ranges::any_of(layout.files, [&](const HfFileLayout& file) {
    return std::ranges::any_of(file.tensors, [&](const TensorDeclaration& tensor) {
      const SavedValues saved = values_of(reader, tensor);
      const bool narrower = saved.state.dtype != tensor.dtype &&
          bits_per_element(saved.state.dtype) <= bits_per_element(tensor.dtype);
      return !saved.state.trainable && (saved.codec != nullptr || narrower);
    });
  });
}

/// The checkpoint's tensors, frozen ones as the folder has them.
TensorFiller filler(const CheckpointReader& reader, const std::optional<HfFolder>& originals) {
  if (!originals) {
    return filler(reader);
  }
  return original_where_frozen(
      filler(reader), *originals, [&](const std::string& name) -> std::optional<HeldAs> {
        const auto found = originals->tensors().find(name);
        if (found == originals->tensors().end()) {
          return std::nullopt;
        }
        const auto saved = find_values(reader, name, found->second.tensor.shape);
        if (!saved || saved->state.trainable) {
          return std::nullopt;
        }
        return HeldAs{
            .codec = saved->codec,
            .type = saved->codec == nullptr ? scalar_type(saved->state) : at::kFloat};
      });
}

/// A whole parameter, fp32.
at::Tensor parameter(const CheckpointReader& reader, const std::string& name) {
  for (const std::string_view state : {kMasterState, kParameterState}) {
    if (const auto* found = find_state(reader.manifest(), name, state)) {
      const StateDeclaration values = declaration_of(*found);
      at::Tensor stored = at::empty(values.shape, at::TensorOptions().dtype(scalar_type(values)));
      reader.read(
          values.name,
          values.state,
          0,
          values.elements(),
          {static_cast<std::byte*>(stored.mutable_data_ptr()), stored.nbytes()});
      return stored.to(at::kFloat);
    }
  }
  throw UserError("{} has no values of {}", reader.folder().string(), name);
}

/// Adapters of a run: what adapter_config.json says, and of which layers.
struct TrainedAdapters {
  std::string config_text;
  std::vector<LinearDeclaration> layers;
  AdapterSet set;
  bool weights_in_out = false;
};

/// Takes the adapters' config out of the whole model's folder; empty where the run trained none.
std::optional<TrainedAdapters> take_adapters(
    const CheckpointReader& reader,
    HfFolderLayout& layout) {
  const auto found = layout.small_files.find(std::string(kPeftConfigName));
  if (found == layout.small_files.end()) {
    return std::nullopt;
  }
  const fs::path model = reader.folder() / kModelFolderName;
  const DecoderConfig decoder =
      parse_decoder_config(layout.config_text, (model / "config.json").string());
  TrainedAdapters adapters{
      .config_text = found->second,
      .layers = linear_layers(decoder),
      .set = {},
      .weights_in_out = decoder.family->weights_in_out};
  adapters.set =
      parse_peft_config(adapters.config_text, (model / kPeftConfigName).string(), adapters.layers);
  layout.small_files.erase(found);
  return adapters;
}

void write_merged(
    const CheckpointReader& reader,
    const TrainedAdapters& adapters,
    const HfFolderLayout& layout,
    const std::optional<HfFolder>& originals,
    const fs::path& out) {
  const auto merged = [&](const StoredTensor& tensor) {
    return !adapted_layer(adapters.set, tensor.name).empty();
  };
  write_hf_folder(
      out,
      layout,
      only_finite(
          merge_adapters(
              filler(reader, originals),
              adapters.set,
              adapters.weights_in_out,
              [&](const std::string& name) { return parameter(reader, name); }),
          out,
          merged));
}

void write_adapters(
    const CheckpointReader& reader,
    const TrainedAdapters& adapters,
    const HfFolderLayout& whole,
    const fs::path& out) {
  HfFolderLayout layout = peft_layout(adapters.set, adapters.layers, {});
  layout.config_text = adapters.config_text;
  layout.small_files = whole.small_files;
  layout.small_files.erase("generation_config.json");
  const auto all_trained = [](const StoredTensor& /*tensor*/) { return true; };
  write_hf_folder(out, layout, only_finite(adapter_filler(filler(reader)), out, all_trained));
}

} // namespace

ExportedCheckpoint export_checkpoint(const fs::path& path, const fs::path& out, Adapters wanted) {
  const CheckpointReader reader(find_checkpoint(path));
  HfFolderLayout layout = reader.model_layout();
  const std::optional<TrainedAdapters> adapters = take_adapters(reader, layout);
  ExportedCheckpoint exported{
      .folder = reader.folder(),
      .adapters = adapters && wanted == Adapters::kApart,
      .run_id = reader.info().run_id(),
      .step = reader.info().step()};
  const std::string model = model_path(reader);
  const auto originals = original_folder(model, layout.config_text);
  if (!model.empty() && !originals && !exported.adapters && rounds_frozen(reader, layout)) {
    exported.missing_model = model;
  }
  if (exported.adapters) {
    write_adapters(reader, *adapters, layout, out);
  } else if (adapters) {
    write_merged(reader, *adapters, layout, originals, out);
  } else if (wanted == Adapters::kMerged) {
    throw UserError(
        "{} has no adapters that could be merged: its run trained the weights; leave --merge out",
        reader.folder().string());
  } else {
    const auto trained = [&](const StoredTensor& tensor) {
      return values_of(reader, tensor).state.trainable;
    };
    write_hf_folder(out, layout, only_finite(filler(reader, originals), out, trained));
  }
  return exported;
}

} // namespace palimpsest
