#pragma once

// What is live on the device in one run of a plan, and what is still in flight.
//
//   SlotTable table(services.params, memory);
//   table.prepare(op, effects(op, job));              // waits for operands, begins gradients
//   table.keep(slot, tensor);                         // a slot begins
//   table.in_flight(store.gather(unit));              // whoever uses the operands waits for it
//   table.drop(op, slot_store);

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
  /// Waits for what is in flight and closes the gradients that a failed step left open.
  ~SlotTable();

  /// Before an operation: waits for its operands' arrival, for outstanding readers of what it changes
  /// or frees, and begins the gradients that it is the first to add to.
  void prepare(const Op& op, const std::vector<Effect>& effects);

  /// After an operation was issued: notes which of its operands arrive later, or are still read.
  void in_flight(Ticket ticket, const std::vector<Effect>& effects);

  /// The tensor of a live value or gradient, for reading or for receiving into.
  at::Tensor& tensor(const Slot& slot);
  at::Tensor& receive(const Slot& slot);
  /// The tape leaves the table; its slot stays until DROP.
  std::unique_ptr<Tape> take_tape(const Slot& slot);
  Tape& tape(const Slot& slot);

  /// A slot begins; its bytes count as activations from now on.
  void keep(const Slot& slot, at::Tensor tensor);
  void keep(const Slot& slot, std::unique_ptr<Tape> tape);
  /// Adds to a gradient, or begins it.
  void add(const Slot& slot, const at::Tensor& gradient);

  /// What a slot consists of: to be written to another tier, or filled from it.
  std::vector<at::Tensor*> tensors(const Slot& slot);
  void stashed(const Slot& slot) {
    away_.insert(slot);
  }
  void drop(const Slot& slot, TierId tier, SlotStore* slots);

 private:
  struct Held {
    at::Tensor tensor;
    std::unique_ptr<Tape> tape;
  };
  Held& held(const Slot& slot);

  ParamStore& params_;
  std::unordered_map<Slot, Held> held_; // slots of blocks
  std::unordered_set<Slot> open_; // gradient slots of the store
  std::unordered_set<Slot> away_; // with a copy on another tier
  std::unordered_map<Slot, std::shared_ptr<Ticket>> arriving_;
  std::unordered_multimap<Slot, std::shared_ptr<Ticket>> readers_;
};

} // namespace palimpsest
