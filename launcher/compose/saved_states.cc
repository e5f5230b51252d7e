#include <palimpsest/launcher/compose/saved_states.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/models/original_weights.h>
#include <palimpsest/core/models/weights.h>
#include <palimpsest/launcher/compose/saved_values.h>

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>

namespace palimpsest {
namespace {

StoredDtype stored_dtype(at::ScalarType dtype) {
  switch (dtype) {
    case at::kFloat:
      return StoredDtype::F32;
    case at::kBFloat16:
      return StoredDtype::BF16;
    case at::kHalf:
      return StoredDtype::F16;
    case at::kByte:
      return StoredDtype::U8;
    default:
      check(false, "states of dtype {} are not saved", c10::toString(dtype));
      return {};
  }
}

/// Whether what is saved are codes: a state named after their codec, in bytes.
bool holds_codes(const ParamUnit& unit) {
  return unit.codec() != nullptr && unit.codec()->block() > 1;
}

/// The part of a parameter's state that a rank holds.
struct HeldPiece {
  StatePiece piece;
  bool of_parameter = false; // its own values, not a moment
  std::vector<int64_t> shape; // of the parameter
  at::Tensor values; // flat
};

template <typename Visit>
void for_each_piece(const Chain& chain, ShardedParamStore& store, Visit visit) {
  for (size_t number = 0; number < chain.units.size(); ++number) {
    const ParamUnit& unit = *chain.units[number];
    const ElementRange range = store.range(static_cast<int>(number));
    const ParamShard& shard = store.shard(static_cast<int>(number));
    const bool codes = holds_codes(unit);
    std::vector<std::pair<std::string, at::Tensor>> states = {
        {std::string(
             codes                        ? unit.codec()->name()
                 : shard.master.defined() ? kMasterState
                                          : kParameterState),
         shard.values()}};
    for (size_t moment = 0; moment < shard.moments.size(); ++moment) {
      states.emplace_back(moment_state(moment), shard.moments[moment]);
    }
    for (const Parameter& parameter : unit.parameters()) {
      const int64_t begin = std::max(parameter.offset, range.begin);
      const int64_t end = std::max(begin, std::min(parameter.offset + parameter.numel, range.end));
      for (const auto& [state, values] : states) {
        HeldPiece held;
        held.of_parameter = state == states.front().first;
        held.shape = parameter.shape;
        held.piece.whole.name = parameter.name;
        held.piece.whole.dtype = stored_dtype(values.scalar_type());
        held.piece.whole.shape =
            codes ? std::vector<int64_t>{unit.held(parameter.numel)} : parameter.shape;
        held.piece.whole.state = state;
        held.piece.whole.trainable = unit.trainable();
        held.piece.begin = unit.held(begin - parameter.offset);
        held.piece.count = unit.held(end - begin);
        if (end > begin) {
          held.values = values.narrow(0, unit.held(begin - range.begin), unit.held(end - begin));
        }
        visit(static_cast<int>(number), held);
      }
    }
  }
}

bool is_real(StoredDtype dtype) {
  return dtype == StoredDtype::F32 || dtype == StoredDtype::BF16 || dtype == StoredDtype::F16;
}

/// What a checkpoint calls this state, and its type there. A parameter's values are its master where
/// it has one, else the parameter itself or its codes, whichever the run that saved had; real numbers
/// of another type are converted, which a run must have been allowed (its precision has changed).
StateDeclaration stored_as(const HeldPiece& held, const CheckpointReader& reader) {
  StateDeclaration wanted = held.piece.whole;
  if (held.of_parameter) {
    const auto found = find_values(reader, wanted.name, held.shape);
    return found ? found->state : wanted;
  }
  const auto* stored = find_state(reader.manifest(), wanted.name, wanted.state);
  if (stored != nullptr) {
    const StoredDtype dtype = declaration_of(*stored).dtype;
    wanted.dtype = is_real(wanted.dtype) && is_real(dtype) ? dtype : wanted.dtype;
  }
  return wanted;
}

/// Whether these are the same bytes.
bool same_type(const StateDeclaration& one, const StateDeclaration& other) {
  const bool codes = one.dtype == StoredDtype::U8;
  return one.dtype == other.dtype && (!codes || one.state == other.state);
}

std::span<std::byte> bytes_of(const at::Tensor& flat) {
  return {static_cast<std::byte*>(flat.mutable_data_ptr()), flat.nbytes()};
}

/// Fills the piece, to the nearest where the checkpoint has it in another type.
void read_piece(const CheckpointReader& reader, const HeldPiece& held) {
  constexpr int64_t kPart = int64_t{1} << 20;
  const StatePiece& piece = held.piece;
  const StateDeclaration stored = stored_as(held, reader);
  const auto read = [&](int64_t first, const at::Tensor& into) {
    const int64_t begin = piece.begin + first;
    reader.read(stored.name, stored.state, begin, begin + into.numel(), bytes_of(into));
  };
  if (stored.dtype == piece.whole.dtype) {
    return read(0, held.values);
  }
  for (int64_t first = 0; first < piece.count; first += kPart) {
    const int64_t count = std::min(kPart, piece.count - first);
    const at::Tensor part = at::empty({count}, scalar_type(stored));
    read(first, part);
    held.values.narrow(0, first, count).copy_(part);
  }
}

/// Elements of a parameter from number `first` on.
struct PartOfParameter {
  const Parameter& parameter;
  int64_t first;
  at::Tensor values; // flat
};

/// Whether the folder's weights, rounded as they were held, are the checkpoint's: whole blocks of them.
bool is_original(
    const CheckpointReader& reader,
    const SavedValues& saved,
    int64_t begin,
    const at::Tensor& original) {
  const at::Tensor held = at::empty_like(original);
  read_values(reader, saved, begin, held);
  const HeldAs as{
      .codec = saved.codec, .type = saved.codec == nullptr ? scalar_type(saved.state) : at::kFloat};
  return once_rounded(original, as).equal(held);
}

/// Fills the part with the folder's weights. False where it has none for this one.
bool read_original(
    const CheckpointReader& reader,
    const SavedValues& saved,
    const FillValues& originals,
    const PartOfParameter& part) {
  constexpr int64_t kPart = int64_t{1} << 20; // elements at a time
  const int64_t block = saved.codec == nullptr ? 1 : saved.codec->block();
  const int64_t last = part.first + part.values.numel();
  for (int64_t first = part.first, next = 0; first < last; first = next) {
    const int64_t begin = first / block * block;
    const int64_t whole = (last + block - 1) / block * block;
    const int64_t end = std::min({begin + kPart, whole, part.parameter.numel});
    next = std::min(end, last);
    const at::Tensor original = at::empty({end - begin}, at::kFloat);
    if (!originals(part.parameter, begin, original)) {
      return false;
    }
    if (!is_original(reader, saved, begin, original)) {
      throw UserError(
          "model.path: {} is no longer what training began with, and in another precision.frozen "
          "it is read anew; put the folder back as it was, move it away, or keep precision.frozen",
          part.parameter.name);
    }
    part.values.narrow(0, first - part.first, next - first)
        .copy_(original.narrow(0, first - begin, next - first));
  }
  return true;
}

} // namespace

std::vector<StatePiece> SavedStates::pieces() const {
  std::vector<StatePiece> pieces;
  for_each_piece(chain_, store_, [&](int unit, const HeldPiece& held) {
    const bool copy = groups_.replicate_rank() > 0 ||
        (store_.layout(unit).ranks == 1 && groups_.shard_rank() > 0);
    // A parameter without elements is declared once, by the first rank.
    const bool mine = held.piece.count > 0 ||
        (groups_.data_rank() == 0 && StateDeclaration(held.piece.whole).elements() == 0);
    if (!copy && mine) {
      pieces.push_back(held.piece);
      pieces.back().begin = held.piece.count > 0 ? held.piece.begin : 0;
    }
  });
  return pieces;
}

PieceSource SavedStates::source() const {
  std::map<std::pair<std::string, std::string>, at::Tensor> values;
  for_each_piece(chain_, store_, [&](int, const HeldPiece& held) {
    values[{held.piece.whole.name, held.piece.whole.state}] = held.values;
  });
  return [values = std::move(values)](const StatePiece& piece, const PieceSink& sink) {
    const at::Tensor& tensor = values.at({piece.whole.name, piece.whole.state});
    if (tensor.defined()) {
      sink({static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()});
    }
  };
}

bool SavedStates::load(const CheckpointReader& reader, const FillValues& originals) const {
  std::vector<StateDeclaration> expected;
  std::set<std::string> converted; // parameters that are of another type there
  std::set<std::string> frozen; // then and now
  for_each_piece(chain_, store_, [&](int, const HeldPiece& held) {
    const StateDeclaration& stored = expected.emplace_back(stored_as(held, reader));
    if (held.of_parameter && !same_type(stored, held.piece.whole)) {
      converted.insert(stored.name);
    }
    if (!held.piece.whole.trainable && !stored.trainable) {
      frozen.insert(stored.name);
    }
  });
  reader.compare_with(expected);
  for_each_piece(chain_, store_, [&](int, const HeldPiece& held) {
    const bool later = held.of_parameter && converted.contains(held.piece.whole.name);
    if (held.piece.count > 0 && !later) {
      read_piece(reader, held);
    }
  });
  bool from_folder = false;
  const UnitSource parameters = [this](int unit) {
    return UnitValues{.values = store_.shard(unit).values(), .begin = store_.range(unit).begin};
  };
  const auto fill = [&](const Parameter& parameter, int64_t first, const at::Tensor& values) {
    if (!converted.contains(parameter.name)) {
      return false;
    }
    const SavedValues saved = *find_values(reader, parameter.name, parameter.shape);
    const bool from_there = originals && frozen.contains(parameter.name) &&
        read_original(reader, saved, originals, {parameter, first, values});
    if (!from_there) {
      read_values(reader, saved, first, values);
    }
    from_folder = from_folder || from_there;
    return true;
  };
  fill_parameters(chain_, parameters, fill);
  return from_folder;
}

} // namespace palimpsest
