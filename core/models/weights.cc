#include <palimpsest/core/models/weights.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/io/decoder_tensors.h>
#include <palimpsest/core/kernels/random_init.h>

#include <ATen/ops/empty.h>
#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

namespace palimpsest {
namespace {

/// The part of a parameter that a rank holds.
struct Piece {
  const Parameter& parameter;
  at::Tensor values; // flat
  int64_t first = 0; // its first element's number in the parameter
};

template <typename Visit>
void for_each_piece(const Chain& chain, const UnitSource& source, Visit visit) {
  for (size_t unit = 0; unit < chain.units.size(); ++unit) {
    const UnitValues held = source(static_cast<int>(unit));
    const int64_t held_end = held.begin + held.values.numel();
    for (const Parameter& parameter : chain.units[unit]->parameters()) {
      const int64_t begin = std::max(parameter.offset, held.begin);
      const int64_t end = std::min(parameter.offset + parameter.numel, held_end);
      if (begin < end) {
        visit(Piece{
            .parameter = parameter,
            .values = held.values.narrow(0, begin - held.begin, end - begin),
            .first = begin - parameter.offset});
      }
    }
  }
}

/// Calls copy(part of values, buffer, bytes of the part) in parts of bounded size. The bytes are
/// aligned to nothing, hence the buffer.
template <typename Bytes, typename Copy>
void in_parts(const at::Tensor& values, at::ScalarType dtype, Bytes bytes, Copy copy) {
  constexpr int64_t kPart = int64_t{1} << 20;
  const at::Tensor buffer =
      at::empty({std::min(kPart, values.numel())}, at::TensorOptions().dtype(dtype));
  const auto width = static_cast<int64_t>(buffer.element_size());
  for (int64_t begin = 0; begin < values.numel(); begin += kPart) {
    const int64_t count = std::min(kPart, values.numel() - begin);
    copy(
        values.narrow(0, begin, count),
        buffer.narrow(0, 0, count),
        bytes.subspan(static_cast<size_t>(begin * width), static_cast<size_t>(count * width)));
  }
}

} // namespace

at::ScalarType scalar_type(const TensorDeclaration& tensor) {
  switch (tensor.dtype) {
    case StoredDtype::F32:
      return at::kFloat;
    case StoredDtype::F16:
      return at::kHalf;
    case StoredDtype::BF16:
      return at::kBFloat16;
    default:
      throw UserError("{} is {}, not F32, F16 or BF16", tensor.name, name_of(tensor.dtype));
  }
}

void initialise(
    Chain& chain,
    const UnitSource& source,
    uint64_t seed,
    const std::function<Initial(const Parameter&)>& rule) {
  for_each_piece(chain, source, [&](const Piece& piece) {
    const Initial initial = rule(piece.parameter);
    if (initial.std == 0) {
      piece.values.fill_(initial.value);
      return;
    }
    const std::string& name = piece.parameter.name;
    kernels::normal_fill(
        piece.values, initial.std, seed, XXH3_64bits(name.data(), name.size()), piece.first);
  });
}

std::vector<TensorDeclaration> declarations(const Chain& chain) {
  std::vector<TensorDeclaration> result;
  for (const auto& unit : chain.units) {
    for (const Parameter& parameter : unit->parameters()) {
      result.push_back(
          {.name = parameter.name, .dtype = StoredDtype::F32, .shape = parameter.shape});
    }
  }
  return result;
}

void load_weights(const HfFolder& folder, Chain& chain, const UnitSource& source) {
  folder.compare_with(declarations(chain));
  for_each_piece(chain, source, [&](const Piece& piece) {
    const StoredTensor& stored = folder.at(piece.parameter.name);
    const at::ScalarType dtype = scalar_type(stored);
    const auto width = static_cast<int64_t>(c10::elementSize(dtype));
    const auto bytes = folder.bytes(piece.parameter.name)
                           .subspan(
                               static_cast<size_t>(piece.first * width),
                               static_cast<size_t>(piece.values.numel() * width));
    in_parts(piece.values, dtype, bytes, [](const auto& values, const auto& buffer, auto part) {
      std::memcpy(buffer.mutable_data_ptr(), part.data(), part.size());
      values.copy_(buffer);
    });
    folder.forget(piece.parameter.name);
  });
}

TensorFiller export_filler(const Chain& chain, UnitSource source) {
  std::map<std::string, std::pair<int, Parameter>> places;
  for (size_t unit = 0; unit < chain.units.size(); ++unit) {
    for (const Parameter& parameter : chain.units[unit]->parameters()) {
      places.emplace(parameter.name, std::pair(static_cast<int>(unit), parameter));
    }
  }
  return [places = std::move(places),
          source = std::move(source)](const StoredTensor& stored, std::span<std::byte> bytes) {
    auto place = places.end();
    for (const std::string& name : model_names(stored.name)) {
      place = place == places.end() ? places.find(name) : place;
    }
    check(place != places.end(), "the model has no parameter {}", stored.name);
    const auto& [unit, parameter] = place->second;
    const UnitValues held = source(unit);
    check(
        held.begin == 0 && held.values.numel() >= parameter.offset + parameter.numel,
        "{} is exported from a part of its unit",
        stored.name);
    const at::Tensor values = held.values.narrow(0, parameter.offset, parameter.numel);
    in_parts(
        values, scalar_type(stored), bytes, [](const auto& part, const auto& buffer, auto out) {
          buffer.copy_(part);
          std::memcpy(out.data(), buffer.const_data_ptr(), out.size());
        });
  };
}

} // namespace palimpsest
