#include <palimpsest/core/plan/op.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/plan/plan.h>
#include <palimpsest/core/plan/text.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <optional>

namespace palimpsest {
namespace {

constexpr std::array<std::string_view, kOpKinds> kOpNames{
    "LOAD",
    "FORWARD",
    "BACKWARD",
    "GATHER",
    "RELEASE",
    "REDUCE",
    "STASH",
    "FETCH",
    "SEND",
    "RECV",
    "DROP",
    "AGREE",
    "UPDATE",
    "PUBLISH",
    "COMMIT"};
constexpr std::array<std::string_view, 3> kTapeNames{"none", "lean", "full"};
constexpr std::array<std::string_view, 3> kPartNames{"both", "input", "weight"};
constexpr std::array<std::string_view, 3> kAxisNames{"shard", "replicate", "tie"};

enum class Field : uint8_t {
  kBlock,
  kUnit,
  kMb,
  kMbs,
  kTape,
  kYields,
  kPart,
  kAxis,
  kSlot,
  kTier,
  kPeer
};
constexpr std::array<std::string_view, 11> kFieldNames{
    "block",
    "unit",
    "mb",
    "mbs",
    "tape",
    "yields",
    "part",
    "axis",
    "slot",
    "tier",
    "peer"};

/// The fields that a kind uses, in the order in which they are printed.
std::initializer_list<Field> fields_of(OpKind kind) {
  static constexpr std::initializer_list<Field> kNothing{};
  static constexpr std::initializer_list<Field> kLoad{Field::kMb};
  static constexpr std::initializer_list<Field> kForward{
      Field::kBlock, Field::kMb, Field::kTape, Field::kYields};
  static constexpr std::initializer_list<Field> kBackward{Field::kBlock, Field::kMb, Field::kPart};
  static constexpr std::initializer_list<Field> kUnit{Field::kUnit};
  static constexpr std::initializer_list<Field> kReduce{Field::kUnit, Field::kMbs, Field::kAxis};
  static constexpr std::initializer_list<Field> kPlace{Field::kSlot, Field::kTier};
  static constexpr std::initializer_list<Field> kTransfer{Field::kSlot, Field::kPeer};
  switch (kind) {
    case OpKind::kLoad:
      return kLoad;
    case OpKind::kForward:
      return kForward;
    case OpKind::kBackward:
      return kBackward;
    case OpKind::kGather:
    case OpKind::kRelease:
    case OpKind::kUpdate:
    case OpKind::kPublish:
      return kUnit;
    case OpKind::kReduce:
      return kReduce;
    case OpKind::kStash:
    case OpKind::kFetch:
    case OpKind::kDrop:
      return kPlace;
    case OpKind::kSend:
    case OpKind::kRecv:
      return kTransfer;
    case OpKind::kAgree:
    case OpKind::kCommit:
      return kNothing;
  }
  return kNothing;
}

std::string to_text(const ValueSet& set) {
  std::string text = "{";
  for (int index = 0; index < ValueSet::kLimit; ++index) {
    if (set.contains(index)) {
      text += (text.size() > 1 ? "," : "") + std::to_string(index);
    }
  }
  return text + "}";
}

std::string field_text(const Op& op, Field field) {
  switch (field) {
    case Field::kBlock:
      return std::to_string(op.block);
    case Field::kUnit:
      return std::to_string(op.unit);
    case Field::kMb:
      return std::to_string(op.mb);
    case Field::kMbs:
      return '[' + std::to_string(op.mbs.begin) + ',' + std::to_string(op.mbs.end) + ')';
    case Field::kTape:
      return std::string(to_text(op.tape));
    case Field::kYields:
      return to_text(op.yields);
    case Field::kPart:
      return std::string(to_text(op.part));
    case Field::kAxis:
      return std::string(to_text(op.axis));
    case Field::kSlot:
      return to_text(op.slot);
    case Field::kTier:
      return std::string(to_text(op.tier));
    case Field::kPeer:
      return std::to_string(op.peer);
  }
  return {};
}

int parse_number(std::string_view text, std::string_view wanted) {
  if (const auto number = text::parse_index(text)) {
    return *number;
  }
  throw UserError("'{}' is not {}; give a number from 0 on", text, wanted);
}

ValueSet parse_value_set(std::string_view text) {
  if (text.size() < 2 || text.front() != '{' || text.back() != '}') {
    throw UserError("yields: '{}' is not a set of value indices; write it like {{0,2}}", text);
  }
  ValueSet set;
  if (text.size() > 2) {
    for (const auto part : text::split(text.substr(1, text.size() - 2), ',')) {
      const int index = parse_number(part, "a value index");
      if (index >= ValueSet::kLimit || set.contains(index)) {
        throw UserError("yields: index {} is repeated or not below {}", index, ValueSet::kLimit);
      }
      set.insert(index);
    }
  }
  return set;
}

MicroBatchRange parse_range(std::string_view text) {
  const bool bracketed = text.size() > 2 && text.front() == '[' && text.back() == ')';
  const auto parts =
      text::split(bracketed ? text.substr(1, text.size() - 2) : std::string_view(), ',');
  if (parts.size() != 2) {
    throw UserError("mbs: '{}' is not a range of micro-batches; write it like [0,4)", text);
  }
  return {parse_number(parts[0], "a micro-batch"), parse_number(parts[1], "a micro-batch")};
}

void parse_field(Op& op, Field field, std::string_view text) {
  switch (field) {
    case Field::kBlock:
      op.block = parse_number(text, "a block");
      break;
    case Field::kUnit:
      op.unit = parse_number(text, "a unit");
      break;
    case Field::kMb:
      op.mb = parse_number(text, "a micro-batch");
      break;
    case Field::kMbs:
      op.mbs = parse_range(text);
      break;
    case Field::kTape:
      op.tape = parse_tape(text);
      break;
    case Field::kYields:
      op.yields = parse_value_set(text);
      break;
    case Field::kPart:
      op.part = static_cast<BackwardPart>(text::parse_name(kPartNames, text, "a part"));
      break;
    case Field::kAxis:
      op.axis = static_cast<ReduceAxis>(text::parse_name(kAxisNames, text, "an axis"));
      break;
    case Field::kSlot:
      op.slot = parse_slot(text);
      break;
    case Field::kTier:
      op.tier = parse_tier(text);
      break;
    case Field::kPeer:
      op.peer = parse_number(text, "a pipeline rank");
      break;
  }
}

} // namespace

Op Op::load(int mb) {
  return {.kind = OpKind::kLoad, .mb = mb};
}
Op Op::forward(int block, int mb, TapeMode tape, ValueSet yields) {
  return {.kind = OpKind::kForward, .block = block, .mb = mb, .tape = tape, .yields = yields};
}
Op Op::backward(int block, int mb, BackwardPart part) {
  return {.kind = OpKind::kBackward, .block = block, .mb = mb, .part = part};
}
Op Op::gather(int unit) {
  return {.kind = OpKind::kGather, .unit = unit};
}
Op Op::release(int unit) {
  return {.kind = OpKind::kRelease, .unit = unit};
}
Op Op::reduce(int unit, MicroBatchRange mbs, ReduceAxis axis) {
  return {.kind = OpKind::kReduce, .unit = unit, .mbs = mbs, .axis = axis};
}
Op Op::stash(const Slot& slot, TierId tier) {
  return {.kind = OpKind::kStash, .tier = tier, .slot = slot};
}
Op Op::fetch(const Slot& slot, TierId tier) {
  return {.kind = OpKind::kFetch, .tier = tier, .slot = slot};
}
Op Op::send(const Slot& slot, int peer) {
  return {.kind = OpKind::kSend, .slot = slot, .peer = peer};
}
Op Op::recv(const Slot& slot, int peer) {
  return {.kind = OpKind::kRecv, .slot = slot, .peer = peer};
}
Op Op::drop(const Slot& slot, TierId tier) {
  return {.kind = OpKind::kDrop, .tier = tier, .slot = slot};
}
Op Op::agree() {
  return {.kind = OpKind::kAgree};
}
Op Op::update(int unit) {
  return {.kind = OpKind::kUpdate, .unit = unit};
}
Op Op::publish(int unit) {
  return {.kind = OpKind::kPublish, .unit = unit};
}
Op Op::commit() {
  return {.kind = OpKind::kCommit};
}

std::string_view to_text(OpKind kind) {
  return kOpNames[static_cast<size_t>(kind)];
}
std::string_view to_text(TapeMode tape) {
  return kTapeNames[static_cast<size_t>(tape)];
}
std::string_view to_text(BackwardPart part) {
  return kPartNames[static_cast<size_t>(part)];
}
std::string_view to_text(ReduceAxis axis) {
  return kAxisNames[static_cast<size_t>(axis)];
}

TapeMode parse_tape(std::string_view text) {
  return static_cast<TapeMode>(text::parse_name(kTapeNames, text, "a tape"));
}

std::string to_text(const Op& op) {
  std::string text(to_text(op.kind));
  for (const Field field : fields_of(op.kind)) {
    text += ' ';
    text += kFieldNames[static_cast<size_t>(field)];
    text += '=';
    text += field_text(op, field);
  }
  return text;
}

Op parse_op(std::string_view text) {
  const auto words = text::split(text, ' ');
  const auto kind = static_cast<OpKind>(text::parse_name(kOpNames, words.front(), "an operation"));
  Op op{.kind = kind};
  const auto fields = fields_of(kind);
  uint32_t seen = 0;
  for (size_t word = 1; word < words.size(); ++word) {
    const size_t equals = words[word].find('=');
    const auto name = words[word].substr(0, equals);
    const auto field = text::find_name(kFieldNames, name);
    const bool used = field &&
        std::find(fields.begin(), fields.end(), static_cast<Field>(*field)) != fields.end();
    if (!used || equals == std::string_view::npos || (seen >> *field & 1) != 0) {
      throw UserError("'{}': '{}' is repeated or not a field of {}", text, words[word], words[0]);
    }
    seen |= uint32_t{1} << *field;
    parse_field(op, static_cast<Field>(*field), words[word].substr(equals + 1));
  }
  for (const Field field : fields) {
    if ((seen >> static_cast<int>(field) & 1) == 0) {
      throw UserError("'{}': {} is missing", text, kFieldNames[static_cast<size_t>(field)]);
    }
  }
  return op;
}

std::string to_text(const StepPlan& plan) {
  std::string text;
  for (const Op& op : plan) {
    text += to_text(op);
    text += '\n';
  }
  return text;
}

StepPlan parse_plan(std::string_view text) {
  StepPlan plan;
  int number = 0;
  for (const auto line : text::split(text, '\n')) {
    ++number;
    if (line.empty() || line.front() == '#') {
      continue;
    }
    try {
      plan.push_back(parse_op(line));
    } catch (const UserError& error) {
      throw UserError("line {} of the plan: {}", number, error.what());
    }
  }
  return plan;
}

uint64_t plan_hash(const StepPlan& plan) {
  uint64_t hash = plan.size();
  for (const Op& op : plan) {
    hash = hash_mix(hash, std::hash<Op>()(op));
  }
  return hash;
}

} // namespace palimpsest

size_t std::hash<palimpsest::Op>::operator()(const palimpsest::Op& op) const noexcept {
  const auto pair = [](int high, int low) {
    return static_cast<uint64_t>(static_cast<uint32_t>(high)) << 32 | static_cast<uint32_t>(low);
  };
  uint64_t mixed = static_cast<uint64_t>(op.kind) | static_cast<uint64_t>(op.tape) << 8 |
      static_cast<uint64_t>(op.part) << 16 | static_cast<uint64_t>(op.axis) << 24 |
      static_cast<uint64_t>(op.tier) << 32;
  for (const uint64_t word :
       {pair(op.block, op.unit),
        pair(op.mb, op.peer),
        pair(op.mbs.begin, op.mbs.end),
        op.yields.bits(),
        static_cast<uint64_t>(std::hash<palimpsest::Slot>()(op.slot))}) {
    mixed = palimpsest::hash_mix(mixed, word);
  }
  return mixed;
}
