#include <palimpsest/launcher/compose/gradient_dump.h>

#include <palimpsest/core/io/safetensors.h>

#include <map>
#include <string>
#include <vector>

namespace palimpsest {

void GradientDump::op_begin(size_t /*index*/, const Op& op) {
  if (done_ || op.kind != OpKind::kAgree) {
    return;
  }
  done_ = true;
  std::vector<TensorDeclaration> declarations;
  std::map<std::string, at::Tensor> gradients;
  for (const auto& unit : chain_.units) {
    if (!unit->trainable()) {
      continue;
    }
    for (size_t index = 0; index < unit->parameters().size(); ++index) {
      const Parameter& parameter = unit->parameters()[index];
      declarations.push_back({parameter.name, StoredDtype::F32, parameter.shape});
      gradients[parameter.name] = unit->grad_view(index);
    }
  }
  SafetensorsWriter writer(file_, std::move(declarations));
  for (const StoredTensor& tensor : writer.tensors()) {
    const at::Tensor& gradient = gradients.at(tensor.name);
    writer.write(
        tensor.name,
        {static_cast<const std::byte*>(gradient.const_data_ptr()),
         static_cast<size_t>(tensor.bytes())});
  }
  writer.commit();
}

} // namespace palimpsest
