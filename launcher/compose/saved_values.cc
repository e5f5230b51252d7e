#include <palimpsest/launcher/compose/saved_values.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/frozen_codec.h>

#include <ATen/ops/empty.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

namespace palimpsest {
namespace {

void check_parameters(const CheckpointReader& reader, const Chain& chain) {
  std::vector<std::string> wrong;
  for (const auto& unit : chain.units) {
    for (const Parameter& parameter : unit->parameters()) {
      if (!find_values(reader, parameter.name, parameter.shape)) {
        wrong.push_back(
            fmt::format("{} {} is missing", parameter.name, format_shape(parameter.shape)));
      }
    }
  }
  if (!wrong.empty()) {
    throw UserError("{} is of another model: {}", reader.folder().string(), fmt::join(wrong, "; "));
  }
}

} // namespace

std::optional<SavedValues> find_values(
    const CheckpointReader& reader,
    const std::string& name,
    const std::vector<int64_t>& shape) {
  for (const std::string_view state : {kMasterState, kParameterState}) {
    const auto* found = find_state(reader.manifest(), name, state);
    if (found != nullptr && declaration_of(*found).shape == shape) {
      return SavedValues{.state = declaration_of(*found)};
    }
  }
  for (const std::string_view type : {"int8", "nf4"}) {
    const auto* found = find_state(reader.manifest(), name, type);
    const auto codec = frozen_codec(type, at::kFloat);
    const int64_t elements =
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    if (found != nullptr && declaration_of(*found).elements() == codec->held(elements)) {
      return SavedValues{.state = declaration_of(*found), .codec = codec};
    }
  }
  return std::nullopt;
}

void read_values(
    const CheckpointReader& reader,
    const SavedValues& saved,
    int64_t begin,
    const at::Tensor& values) {
  constexpr int64_t kPart = int64_t{1} << 20;
  const auto read = [&](int64_t first, const at::Tensor& into) {
    reader.read(
        saved.state.name,
        saved.state.state,
        first,
        first + into.numel(),
        {static_cast<std::byte*>(into.mutable_data_ptr()), into.nbytes()});
  };
  for (int64_t first = 0; first < values.numel(); first += kPart) {
    const at::Tensor part = values.narrow(0, first, std::min(kPart, values.numel() - first));
    if (saved.codec == nullptr) {
      const at::Tensor stored =
          at::empty({part.numel()}, at::TensorOptions().dtype(scalar_type(saved.state)));
      read(begin + first, stored);
      part.copy_(stored);
    } else {
      const int64_t skipped = (begin + first) % saved.codec->block(); // of its first block
      const at::Tensor whole = at::empty({skipped + part.numel()}, part.options());
      const at::Tensor codes = at::empty({saved.codec->held(whole.numel())}, at::kByte);
      read(saved.codec->held(begin + first - skipped), codes);
      saved.codec->decode(codes, whole);
      part.copy_(whole.narrow(0, skipped, part.numel()));
    }
  }
}

void load_values(const CheckpointReader& reader, const Chain& chain, const UnitSource& source) {
  check_parameters(reader, chain);
  fill_parameters(
      chain, source, [&](const Parameter& parameter, int64_t first, const at::Tensor& values) {
        read_values(reader, *find_values(reader, parameter.name, parameter.shape), first, values);
        return true;
      });
}

} // namespace palimpsest
