#include <palimpsest/launcher/compose/gradient_dump.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

namespace palimpsest {
namespace {

std::vector<TensorDeclaration> trainable_tensors(const Chain& chain) {
  std::vector<TensorDeclaration> declarations;
  for (const auto& unit : chain.units) {
    if (unit->trainable()) {
      for (const Parameter& parameter : unit->parameters()) {
        declarations.push_back({parameter.name, StoredDtype::F32, parameter.shape});
      }
    }
  }
  return declarations;
}

} // namespace

GradientDump::GradientDump(std::filesystem::path file, const Chain& chain)
    : chain_(chain), writer_(std::move(file), trainable_tensors(chain)) {}

void GradientDump::op_end(size_t /*index*/, const Op& op) {
  if (done_ || op.kind != OpKind::kAgree) {
    return;
  }
  done_ = true;
  std::map<std::string, at::Tensor> gradients;
  for (const auto& unit : chain_.units) {
    for (size_t index = 0; unit->trainable() && index < unit->parameters().size(); ++index) {
      gradients[unit->parameters()[index].name] = unit->grad_view(index);
    }
  }
  for (const StoredTensor& tensor : writer_.tensors()) {
    const at::Tensor& gradient = gradients.at(tensor.name);
    writer_.write(
        tensor.name,
        {static_cast<const std::byte*>(gradient.const_data_ptr()),
         static_cast<size_t>(tensor.bytes())});
  }
  writer_.commit();
}

} // namespace palimpsest
