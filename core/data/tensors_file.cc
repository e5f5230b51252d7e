#include <palimpsest/core/data/tensors_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/data/records/data_file_error.h>
#include <palimpsest/core/data/records/mapped_data.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <initializer_list>
#include <vector>

namespace palimpsest {

namespace {

SafetensorsFile open_tensors(const std::filesystem::path& path) {
  try {
    return SafetensorsFile(path);
  } catch (const UserError& error) {
    throw DataFileError("{}", error.what());
  }
}

/// The tensor `name`, [N, width] with N and width above 0.
const StoredTensor* find_matrix(
    const SafetensorsFile& file,
    const std::string& name,
    std::initializer_list<StoredDtype> dtypes) {
  const std::string path = file.path().string();
  const StoredTensor* tensor = file.find(name);
  if (tensor == nullptr) {
    std::string known;
    for (const StoredTensor& other : file.tensors()) {
      known += (known.empty() ? "" : ", ") + other.name;
    }
    throw DataFileError(
        "{} has no tensor {}; it has {}", path, name, known.empty() ? "none" : known);
  }
  if (std::ranges::find(dtypes, tensor->dtype) == dtypes.end()) {
    std::string allowed;
    for (const StoredDtype dtype : dtypes) {
      allowed += (allowed.empty() ? "" : " or ") + std::string(name_of(dtype));
    }
    throw DataFileError(
        "{}: tensor {} is {}; it must be {}", path, name, name_of(tensor->dtype), allowed);
  }
  if (tensor->shape.size() != 2) {
    throw DataFileError(
        "{}: tensor {} has shape {}; it must have two dimensions, samples and their "
        "elements",
        path,
        name,
        format_shape(tensor->shape));
  }
  if (tensor->elements() == 0) {
    throw DataFileError(
        "{}: tensor {} of shape {} holds no sample", path, name, format_shape(tensor->shape));
  }
  return tensor;
}

std::span<const std::byte> row_bytes(
    const SafetensorsFile& file,
    const StoredTensor& tensor,
    int64_t row) {
  const auto size = static_cast<size_t>(tensor.bytes() / tensor.shape[0]);
  return file.bytes(tensor).subspan(static_cast<size_t>(row) * size, size);
}

/// Copies a row of I64 or I32 into `out`; the file's bytes need not be aligned.
void read_ids(const SafetensorsFile& file, const StoredTensor& tensor, int64_t row, int64_t* out) {
  const auto bytes = row_bytes(file, tensor, row);
  if (tensor.dtype == StoredDtype::I64) {
    std::memcpy(out, bytes.data(), bytes.size());
    return;
  }
  for (size_t i = 0; i < bytes.size() / sizeof(int32_t); ++i) {
    int32_t id = 0;
    std::memcpy(&id, bytes.data() + i * sizeof id, sizeof id);
    out[i] = id;
  }
}

} // namespace

TokenTensorsFile::TokenTensorsFile(
    const std::filesystem::path& path,
    std::optional<int64_t> sequence_length,
    int64_t vocabulary_size,
    Notes& notes)
    : file_(open_tensors(path)),
      ids_(find_matrix(file_, "input_ids", {StoredDtype::I64, StoredDtype::I32})),
      labels_(find_matrix(file_, "labels", {StoredDtype::I64, StoredDtype::I32})) {
  if (labels_->shape != ids_->shape) {
    throw DataFileError(
        "{}: labels have shape {} and input_ids {}; they must be equal",
        path.string(),
        format_shape(labels_->shape),
        format_shape(ids_->shape));
  }
  if (sequence_length.has_value() && *sequence_length != input_size()) {
    throw UserError(
        "data.sequence_length: {} contradicts {}, whose samples have {} tokens; leave the key out",
        *sequence_length,
        path.string(),
        input_size());
  }
  check_rows(vocabulary_size, notes);
}

void TokenTensorsFile::check_rows(int64_t vocabulary_size, Notes& notes) const {
  std::vector<int64_t> row(static_cast<size_t>(input_size()));
  bool any_target = false;
  for (const StoredTensor* tensor : {ids_, labels_}) {
    for (int64_t sample = 0; sample < size(); ++sample) {
      read_ids(file_, *tensor, sample, row.data());
      for (size_t t = 0; t < row.size(); ++t) {
        const bool in_range = row[t] >= 0 && row[t] < vocabulary_size;
        const bool ignored = tensor == labels_ && row[t] == kIgnoredLabel;
        if (!in_range && !ignored) {
          throw DataFileError(
              "{}: {}[{}, {}] is {}; the model's vocabulary has ids 0 to {}{}",
              file_.path().string(),
              tensor->name,
              sample,
              t,
              row[t],
              vocabulary_size - 1,
              tensor == labels_ ? ", and -100 is no target" : "");
        }
        any_target = any_target || (tensor == labels_ && t > 0 && !ignored);
      }
    }
    file_.forget(*tensor);
  }
  if (!any_target) {
    notes.push_back(
        file_.path().string() + " has no target: no label after a row's first is above -100");
  }
}

void TokenTensorsFile::read(int64_t sample, void* inputs, void* labels) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  read_ids(file_, *ids_, sample, static_cast<int64_t*>(inputs));
  std::vector<int64_t> row(static_cast<size_t>(label_size()));
  read_ids(file_, *labels_, sample, row.data());
  shift_labels(row, static_cast<int64_t*>(labels));
}

FeatureTensorsFile::FeatureTensorsFile(
    const std::filesystem::path& path,
    int64_t input_size,
    int64_t output_size)
    : file_(open_tensors(path)), inputs_(find_matrix(file_, "inputs", {StoredDtype::F32})),
      targets_(find_matrix(file_, "targets", {StoredDtype::F32})) {
  if (targets_->shape[0] != inputs_->shape[0]) {
    throw DataFileError(
        "{}: inputs have {} samples and targets {}; they must have equally many",
        path.string(),
        inputs_->shape[0],
        targets_->shape[0]);
  }
  const auto check_width = [&](const StoredTensor& tensor, const char* key, int64_t width) {
    if (tensor.shape[1] != width) {
      throw DataFileError(
          "{}: tensor {} has {} elements a sample, but {} is {}; they must be equal",
          path.string(),
          tensor.name,
          tensor.shape[1],
          key,
          width);
    }
  };
  check_width(*inputs_, "model.input_size", input_size);
  check_width(*targets_, "model.output_size", output_size);
  for (const StoredTensor* tensor : {inputs_, targets_}) {
    std::vector<float> row(static_cast<size_t>(tensor->shape[1]));
    for (int64_t sample = 0; sample < size(); ++sample) {
      const auto bytes = row_bytes(file_, *tensor, sample);
      std::memcpy(row.data(), bytes.data(), bytes.size());
      for (size_t i = 0; i < row.size(); ++i) {
        if (!std::isfinite(row[i])) {
          throw DataFileError(
              "{}: {}[{}, {}] is {}; features must be finite",
              path.string(),
              tensor->name,
              sample,
              i,
              row[i]);
        }
      }
    }
    file_.forget(*tensor);
  }
}

void FeatureTensorsFile::read(int64_t sample, void* inputs, void* labels) const {
  check(sample >= 0 && sample < size(), "sample {} of {}", sample, size());
  const auto copy = [&](const StoredTensor& tensor, void* out) {
    const auto bytes = row_bytes(file_, tensor, sample);
    std::memcpy(out, bytes.data(), bytes.size());
  };
  copy(*inputs_, inputs);
  copy(*targets_, labels);
}

} // namespace palimpsest
