#include <palimpsest/core/models/saved_tensors.h>

#include <palimpsest/core/base/error.h>

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/saved_variable_hooks.h>

#include <mutex>
#include <optional>
#include <utility>

namespace palimpsest {
namespace {

thread_local std::shared_ptr<SavedTensors> recording_of_thread;

class Hooks : public torch::autograd::SavedVariableHooks {
 public:
  explicit Hooks(std::shared_ptr<SavedTensors> saved) : saved_(std::move(saved)) {}
  // The engine frees a node's hooks as soon as the node has run, and so the tensor.
  ~Hooks() override {
    if (number_.has_value()) {
      saved_->forget(*number_);
    }
  }
  Hooks(const Hooks&) = delete;
  Hooks& operator=(const Hooks&) = delete;

  void call_pack_hook(const at::Tensor& tensor) override {
    number_ = saved_->pack(tensor);
  }
  at::Tensor call_unpack_hook() override {
    return saved_->unpack(*number_);
  }

 private:
  std::shared_ptr<SavedTensors> saved_;
  std::optional<size_t> number_;
};

class RecordingEngine : public torch::autograd::Engine {
 public:
  static torch::autograd::Engine& get() {
    static RecordingEngine engine;
    return engine;
  }
  ~RecordingEngine() override {
    stop();
  }
  std::unique_ptr<torch::autograd::SavedVariableHooks> get_default_saved_variable_hooks() override {
    return recording_of_thread == nullptr ? nullptr : std::make_unique<Hooks>(recording_of_thread);
  }
};

} // namespace

SavedTensors::Recording::Recording(std::shared_ptr<SavedTensors> saved) {
  static std::once_flag installed;
  std::call_once(
      installed, [] { torch::autograd::set_default_engine_stub(&RecordingEngine::get); });
  check(recording_of_thread == nullptr, "an autograd block runs inside another one");
  recording_of_thread = std::move(saved);
}

SavedTensors::Recording::~Recording() {
  recording_of_thread = nullptr;
}

SavedTensors::SavedTensors(
    TensorSpan inputs,
    std::vector<bool> is_saved,
    std::vector<ParamUnit*> units)
    : inputs_(inputs.begin(), inputs.end()), is_saved_(std::move(is_saved)),
      units_(std::move(units)) {
  check(is_saved_.size() == inputs_.size(), "a block is given another number of inputs");
  for (const at::Tensor& input : inputs_) {
    input_strides_.push_back(input.strides().vec());
  }
}

void SavedTensors::finish() {
  for (const Entry& entry : entries_) {
    check_unchanged(entry);
  }
  inputs_.clear();
}

void SavedTensors::bind_inputs(TensorSpan inputs) {
  check(inputs.size() == is_saved_.size(), "a backward is given another number of inputs");
  for (size_t index = 0; index < inputs.size(); ++index) {
    check(
        !is_saved_[index] ||
            (inputs[index].defined() && inputs[index].strides() == input_strides_[index]),
        "input {} of a backward is missing or laid out otherwise than in the forward",
        index);
  }
  inputs_.assign(inputs.begin(), inputs.end());
}

std::vector<at::Tensor*> SavedTensors::tensors() {
  std::vector<at::Tensor*> result;
  for (Entry& entry : entries_) {
    if (entry.tensor.defined()) {
      result.push_back(&entry.tensor);
    }
  }
  return result;
}

bool SavedTensors::becomes_handle(const at::Tensor& tensor, Entry& entry) const {
  const auto lies_in = [&](const at::Tensor& holder) {
    return holder.defined() && tensor.is_alias_of(holder) &&
        tensor.scalar_type() == holder.scalar_type();
  };
  for (size_t index = 0; index < units_.size(); ++index) {
    const at::Tensor& data = units_[index]->data();
    const int64_t offset =
        lies_in(data) ? tensor.storage_offset() - data.storage_offset() : int64_t{-1};
    if (offset >= 0 && offset < data.numel()) { // several units may lie in one storage
      entry.holder = Holder::kUnit;
      entry.index = index;
      entry.offset = offset;
      return true;
    }
  }
  for (size_t index = 0; index < inputs_.size(); ++index) {
    if (is_saved_[index] && lies_in(inputs_[index])) {
      entry.holder = Holder::kInput;
      entry.index = index;
      entry.offset = tensor.storage_offset() - inputs_[index].storage_offset();
      return true;
    }
  }
  return false;
}

size_t SavedTensors::pack(const at::Tensor& tensor) {
  Entry entry;
  entry.version = tensor._version();
  if (tensor.layout() == at::kStrided && tensor.has_storage() && becomes_handle(tensor, entry)) {
    entry.sizes = tensor.sizes().vec();
    entry.strides = tensor.strides().vec();
  } else {
    entry.tensor = tensor.detach(); // shares storage and version
    entry.identity = entry.tensor.unsafeGetTensorImpl();
  }
  entries_.push_back(std::move(entry));
  return entries_.size() - 1;
}

at::Tensor SavedTensors::unpack(size_t number) const {
  const Entry& entry = entries_.at(number);
  if (entry.holder == Holder::kOwned) {
    check(entry.tensor.defined(), "a saved tensor is used while stashed");
    check_unchanged(entry);
    return entry.tensor;
  }
  if (entry.holder == Holder::kUnit) {
    check(
        units_[entry.index]->data().defined(),
        "parameters of unit {} are read while not gathered",
        units_[entry.index]->name());
  }
  const at::Tensor& holder =
      entry.holder == Holder::kUnit ? units_[entry.index]->data() : inputs_.at(entry.index);
  return holder.as_strided(entry.sizes, entry.strides, holder.storage_offset() + entry.offset);
}

void SavedTensors::forget(size_t number) {
  entries_.at(number).tensor.reset();
}

void SavedTensors::check_unchanged(const Entry& entry) const {
  check(
      entry.tensor.unsafeGetTensorImpl() != entry.identity || !entry.tensor.defined() ||
          entry.tensor._version() == entry.version,
      "a tensor that backward needs was changed in place after it was saved; "
      "use the operation that makes a new tensor");
}

} // namespace palimpsest
