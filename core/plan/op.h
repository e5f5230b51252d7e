#pragma once

// The operations of a training step, as values: comparable, hashable, printed and parsed one a
// line.
//
//   Op op = Op::forward(3, 0, TapeMode::kFull, ValueSet{0});
//   to_text(op);                                          // "FORWARD block=3 mb=0 tape=full yields={0}"
//   parse_op("REDUCE unit=2 mbs=[0,4) axis=shard");
//
// What each operation reads, creates, changes and frees is one table: effects.h.

#include <palimpsest/core/plan/slot.h>

#include <compare>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>

namespace palimpsest {

enum class OpKind : uint8_t {
  kLoad,
  kForward,
  kBackward,
  kGather,
  kRelease,
  kReduce,
  kStash,
  kFetch,
  kSend,
  kRecv,
  kDrop,
  kAgree,
  kUpdate,
  kPublish,
  kCommit,
};
constexpr int kOpKinds = 15;

/// What a FORWARD leaves for its BACKWARD: nothing (it must run again), what is dear to redo, or
/// all.
enum class TapeMode : uint8_t { kNone, kLean, kFull };

/// A whole BACKWARD, or one of its halves: input gradients now, weight gradients later (zero-bubble
/// schedules).
enum class BackwardPart : uint8_t { kBoth, kInput, kWeight };

/// The groups a gradient is summed over, in this order: `tie` joins the pipeline ranks that share a
/// unit.
enum class ReduceAxis : uint8_t { kShard, kReplicate, kTie };

/// A set of a block's value indices, 0 to 63.
class ValueSet {
 public:
  static constexpr int kLimit = 64;

  constexpr ValueSet() = default;
  constexpr ValueSet(std::initializer_list<int> indices) {
    for (const int index : indices) {
      insert(index);
    }
  }
  constexpr void insert(int index) {
    bits_ |= uint64_t{1} << index;
  }
  constexpr bool contains(int index) const {
    return (bits_ >> index & 1) != 0;
  }
  constexpr bool empty() const {
    return bits_ == 0;
  }
  constexpr uint64_t bits() const {
    return bits_;
  }
  auto operator<=>(const ValueSet&) const = default;

 private:
  uint64_t bits_ = 0;
};

/// begin <= mb < end.
struct MicroBatchRange {
  int begin = 0;
  int end = 0;

  auto operator<=>(const MicroBatchRange&) const = default;
};

/// One operation. Fields that its kind does not use keep their defaults, so that equality is
/// meaning.
struct Op {
  OpKind kind = OpKind::kCommit;
  int block = -1; ///< FORWARD BACKWARD
  int unit = -1; ///< GATHER RELEASE REDUCE UPDATE PUBLISH
  int mb = -1; ///< LOAD FORWARD BACKWARD
  MicroBatchRange mbs{}; ///< REDUCE
  TapeMode tape = TapeMode::kNone; ///< FORWARD
  BackwardPart part = BackwardPart::kBoth; ///< BACKWARD
  ReduceAxis axis = ReduceAxis::kShard; ///< REDUCE
  TierId tier = TierId::kDevice; ///< STASH: copies to it; FETCH: copies from it; DROP: frees there
  ValueSet yields{}; ///< FORWARD: which of the block's values it leaves
  Slot slot{}; ///< STASH FETCH SEND RECV DROP
  int peer = -1; ///< SEND RECV: pipeline rank, same data-parallel coordinate

  auto operator<=>(const Op&) const = default;

  static Op load(int mb);
  static Op forward(int block, int mb, TapeMode tape, ValueSet yields);
  static Op backward(int block, int mb, BackwardPart part = BackwardPart::kBoth);
  static Op gather(int unit);
  static Op release(int unit);
  static Op reduce(int unit, MicroBatchRange mbs, ReduceAxis axis);
  static Op stash(const Slot& slot, TierId tier);
  static Op fetch(const Slot& slot, TierId tier);
  static Op send(const Slot& slot, int peer);
  static Op recv(const Slot& slot, int peer);
  static Op drop(const Slot& slot, TierId tier);
  static Op agree();
  static Op update(int unit);
  static Op publish(int unit);
  static Op commit();
};

constexpr bool is_compute(OpKind kind) {
  return kind == OpKind::kForward || kind == OpKind::kBackward;
}

/// What read-ahead distances and lags count.
constexpr bool is_timed(OpKind kind) {
  return is_compute(kind) || kind == OpKind::kUpdate;
}

/// Starts something that ends later; others wait for it when they use its operands.
constexpr bool is_asynchronous(OpKind kind) {
  switch (kind) {
    case OpKind::kGather:
    case OpKind::kReduce:
    case OpKind::kStash:
    case OpKind::kFetch:
    case OpKind::kSend:
    case OpKind::kRecv:
    case OpKind::kPublish:
      return true;
    default:
      return false;
  }
}

constexpr bool is_collective(OpKind kind) {
  return kind == OpKind::kGather || kind == OpKind::kReduce || kind == OpKind::kPublish ||
      kind == OpKind::kAgree;
}

constexpr bool is_transfer(OpKind kind) {
  return kind == OpKind::kSend || kind == OpKind::kRecv;
}

/// Whether the kind uses Op::slot.
constexpr bool has_slot(OpKind kind) {
  return kind >= OpKind::kStash && kind <= OpKind::kDrop;
}

std::string_view to_text(OpKind kind);
std::string_view to_text(TapeMode tape);
std::string_view to_text(BackwardPart part);
std::string_view to_text(ReduceAxis axis);

/// "none", "lean" or "full". Throws UserError naming the text.
TapeMode parse_tape(std::string_view text);

/// The kind in capitals, then the fields it uses as key=value, in a fixed order.
std::string to_text(const Op& op);

/// The inverse; every field of the kind must be there exactly once, in any order. Throws UserError
/// naming the text.
Op parse_op(std::string_view text);

} // namespace palimpsest

template <>
struct std::hash<palimpsest::Op> {
  size_t operator()(const palimpsest::Op& op) const noexcept;
};
