#include <palimpsest/core/engine/slot_table.h>

#include <palimpsest/core/base/error.h>

#include <algorithm>
#include <utility>

namespace palimpsest {

SlotTable::~SlotTable() {
  arriving_.clear(); // a ticket's destructor waits
  readers_.clear();
  for (const Slot& slot : open_) {
    params_.close(slot);
  }
}

void SlotTable::prepare(const Op& op, const std::vector<Effect>& effects) {
  for (const auto& [place, use] : effects) {
    const Slot& slot = place.slot;
    if (use == Use::kChanges || use == Use::kFrees || op.kind == OpKind::kFetch) {
      const auto [first, last] = readers_.equal_range(slot);
      std::for_each(first, last, [](auto& reader) { reader.second->wait(); });
      readers_.erase(slot);
    }
    if (const auto arrival = arriving_.find(slot); arrival != arriving_.end()) {
      arrival->second->wait();
      arriving_.erase(arrival);
    }
    const bool gradient = slot.kind == SlotKind::kGradBuffer || slot.kind == SlotKind::kGradShard;
    if (use == Use::kAdds && gradient && open_.insert(slot).second) {
      params_.open(slot);
    }
  }
}

void SlotTable::in_flight(Ticket ticket, const std::vector<Effect>& effects) {
  if (ticket.done()) {
    ticket.wait();
    return;
  }
  const auto shared = std::make_shared<Ticket>(std::move(ticket));
  for (const auto& [place, use] : effects) {
    if (use == Use::kReads || use == Use::kSpends) {
      readers_.emplace(place.slot, shared);
    } else {
      arriving_[place.slot] = shared;
    }
  }
}

SlotTable::Held& SlotTable::held(const Slot& slot) {
  const auto found = held_.find(slot);
  check(found != held_.end(), "{} is used while not live", to_text(slot));
  return found->second;
}

at::Tensor& SlotTable::tensor(const Slot& slot) {
  return held(slot).tensor;
}

at::Tensor& SlotTable::receive(const Slot& slot) {
  return held_[slot].tensor;
}

std::unique_ptr<Tape> SlotTable::take_tape(const Slot& slot) {
  std::unique_ptr<Tape> tape = std::move(held(slot).tape);
  check(tape != nullptr, "{} is used twice", to_text(slot));
  return tape;
}

Tape& SlotTable::tape(const Slot& slot) {
  check(held(slot).tape != nullptr, "{} is used twice", to_text(slot));
  return *held(slot).tape;
}

void SlotTable::keep(const Slot& slot, at::Tensor tensor) {
  check(tensor.defined(), "{} was not computed", to_text(slot));
  retag(tensor.storage(), Category::kActivations);
  held_[slot].tensor = std::move(tensor);
}

void SlotTable::keep(const Slot& slot, std::unique_ptr<Tape> tape) {
  for (const at::Tensor* tensor : tape->tensors()) {
    if (tensor->defined()) {
      retag(tensor->storage(), Category::kActivations);
    }
  }
  held_[slot].tape = std::move(tape);
}

void SlotTable::add(const Slot& slot, const at::Tensor& gradient) {
  if (const auto found = held_.find(slot); found != held_.end()) {
    found->second.tensor.add_(gradient);
  } else {
    keep(slot, gradient);
  }
}

std::vector<at::Tensor*> SlotTable::tensors(const Slot& slot) {
  if (!per_micro_batch(slot.kind)) {
    return params_.tensors(slot);
  }
  Held& found = held(slot);
  return found.tape != nullptr ? found.tape->tensors() : std::vector<at::Tensor*>{&found.tensor};
}

void SlotTable::drop(const Slot& slot, TierId tier, SlotStore* slots) {
  if (tier != TierId::kDevice) {
    check(slots != nullptr, "{} was never stashed", to_text(slot));
    slots->drop(slot, tier);
    away_.erase(slot);
  } else if (away_.contains(slot)) {
    for (at::Tensor* tensor : tensors(slot)) {
      *tensor = at::Tensor(); // the shell stays, to be fetched into
    }
  } else if (per_micro_batch(slot.kind)) {
    held_.erase(slot);
  } else {
    open_.erase(slot);
    params_.close(slot);
  }
}

} // namespace palimpsest
