#pragma once

// What is live on the device in one run of a plan, and what is still in flight.
//
//   SlotTable table(params);
//   table.prepare(effects);                           // waits for operands, begins gradients
//   table.keep(slot, tensor);                         // a slot begins
//   table.in_flight(params.gather(unit), effects);    // whoever uses the operands waits for it
//   table.drop(slot, TierId::kDevice, slot_store);

#include <palimpsest/core/contracts/block.h>
#include <palimpsest/core/contracts/param_store.h>
#include <palimpsest/core/contracts/slot_store.h>
#include <palimpsest/core/contracts/ticket.h>
#include <palimpsest/core/device/memory_context.h>
#include <palimpsest/core/plan/effects.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace palimpsest {

class SlotTable {
 public:
  explicit SlotTable(ParamStore& params) : params_(params) {}
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;
  /// Waits for what is in flight, closes the gradients that a failed step left open and releases
  /// what it left gathered.
  ~SlotTable();

  /// Before an operation: waits for its operands' arrival, for outstanding readers of what it
  /// changes or frees, and begins the gradients that it is the first to add to.
  void prepare(const std::vector<Effect>& effects);

  /// After an operation was issued: notes which of its operands arrive later, or are still read.
  void in_flight(Ticket ticket, const std::vector<Effect>& effects);

  /// Forgets all values, gradients of values and tapes, and frees their bytes: what is left of the
  /// step will not use them. Their DROPs may still come.
  void abandon();

  /// Lets what is in flight make progress where only polling does that.
  void poll();

  /// Waits for all that is in flight, which frees the buffers behind it. False where nothing was.
  bool finish();

  /// Waits until what arrives at a place is there.
  void await(const Place& place);

  /// The tensor of a live value or gradient.
  at::Tensor& tensor(const Slot& slot);
  /// Where a slot of another rank arrives. A gradient that is live already gets a part of its own,
  /// added when somebody uses the slot.
  at::Tensor& receive(const Slot& slot);
  /// The tape leaves the table; its slot stays until DROP.
  std::unique_ptr<Tape> take_tape(const Slot& slot);
  Tape& tape(const Slot& slot);

  /// A slot begins; its bytes count as activations from now on.
  void keep(const Slot& slot, at::Tensor tensor);
  void keep(const Slot& slot, std::unique_ptr<Tape> tape);
  /// Adds to a gradient, or begins it.
  void add(const Slot& slot, const at::Tensor& gradient);

  /// What a slot consists of: to be written to another tier, or filled from it. The list stays the
  /// same while there is a copy on another tier, since a tape that is dropped here no longer knows
  /// what it had.
  const std::vector<at::Tensor*>& tensors(const Slot& slot);
  void drop(const Slot& slot, TierId tier, SlotStore* slots);

 private:
  struct Held {
    at::Tensor tensor;
    std::unique_ptr<Tape> tape;
    std::vector<at::Tensor> parts; // received, to be added
  };
  Held& held(const Slot& slot);

  ParamStore& params_;
  std::unordered_map<Slot, Held> held_; // slots of blocks
  std::unordered_set<Slot> open_; // the store's: gradients, gathered parameters
  std::unordered_map<Slot, std::vector<at::Tensor*>> away_; // with a copy on another tier
  std::unordered_multimap<Place, std::shared_ptr<Ticket>> arriving_;
  std::unordered_multimap<Place, std::shared_ptr<Ticket>> readers_;
};

} // namespace palimpsest
