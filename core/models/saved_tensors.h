#pragma once

// What LibTorch's autograd saves for one block's backward, held as a list that can be stashed.
//
//   auto saved = std::make_shared<SavedTensors>(inputs, is_saved, units);
//   {
//     SavedTensors::Recording recording(saved);      // this thread's saved tensors come here
//     outputs = function(...);
//   }
//   saved->finish();                                 // lets go of the inputs
//   ...
//   saved->bind_inputs(inputs);                      // and the engine unpacks
//
// A view of a parameter or of a declared input becomes a handle: which one, sizes, strides, offset.
// It is read anew from the unit or from the inputs given to the backward, so units may be released
// and gathered, and inputs recomputed, in between. Everything else is owned, with its strides and
// offset. Autograd checks no versions of tensors saved through hooks, so they are checked here: a
// tensor changed in place after it was saved is an InternalError.
//
// LibTorch asks its engine for the hooks, so the first use installs an engine that gives them, for
// the whole process.

#include <palimpsest/core/contracts/block.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace palimpsest {

class SavedTensors {
 public:
  /// `is_saved`: by input, whether views of it become handles. `units`: whose parameters do.
  SavedTensors(TensorSpan inputs, std::vector<bool> is_saved, std::vector<ParamUnit*> units);

  /// While it lives, what this thread's autograd saves is packed into `saved`. Recordings do not
  /// nest.
  class Recording {
   public:
    explicit Recording(std::shared_ptr<SavedTensors> saved);
    ~Recording();
    Recording(const Recording&) = delete;
    Recording& operator=(const Recording&) = delete;
  };

  /// Ends the forward: checks that nothing saved was changed, and lets go of the inputs.
  void finish();
  /// The inputs of the backward, of the sizes and strides they had. Those not saved may be
  /// undefined.
  void bind_inputs(TensorSpan inputs);

  /// What is owned.
  std::vector<at::Tensor*> tensors();

  size_t pack(const at::Tensor& tensor);
  at::Tensor unpack(size_t number) const;
  /// The engine is done with an entry.
  void forget(size_t number);

 private:
  enum class Holder { kOwned, kInput, kUnit };
  struct Entry {
    Holder holder = Holder::kOwned;
    size_t index = 0; // of the input or unit
    std::vector<int64_t> sizes;
    std::vector<int64_t> strides;
    int64_t offset = 0; // elements from the holder's first
    at::Tensor tensor; // owned
    const void* identity =
        nullptr; // of the tensor as it was saved: a fetched one has other versions
    int64_t version = 0;
  };
  void check_unchanged(const Entry& entry) const;
  bool becomes_handle(const at::Tensor& tensor, Entry& entry) const;

  Tensors inputs_; // while recording, and from bind_inputs on
  std::vector<bool> is_saved_;
  std::vector<std::vector<int64_t>> input_strides_;
  std::vector<ParamUnit*> units_;
  std::vector<Entry> entries_;
};

} // namespace palimpsest
