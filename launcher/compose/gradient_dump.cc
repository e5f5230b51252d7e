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

GradientDump::GradientDump(std::optional<std::filesystem::path> file, const Chain& chain, Lead lead)
    : chain_(chain), lead_(std::move(lead)) {
  if (file) {
    writer_.emplace(std::move(*file), trainable_tensors(chain));
  }
}

void GradientDump::op_end(size_t /*index*/, const Op& op) {
  if (!done_ && op.kind == OpKind::kAgree) {
    done_ = true;
    lead_([this](const UnitSource& source) { write(source); });
  }
}

void GradientDump::write(const UnitSource& source) {
  std::map<std::string, std::pair<int, const Parameter*>> places;
  for (size_t unit = 0; unit < chain_.units.size(); ++unit) {
    for (const Parameter& parameter : chain_.units[unit]->parameters()) {
      places[parameter.name] = {static_cast<int>(unit), &parameter};
    }
  }
  for (const StoredTensor& tensor : writer_->tensors()) {
    const auto& [unit, parameter] = places.at(tensor.name);
    const at::Tensor gradient =
        source(unit).values.narrow(0, parameter->offset, parameter->numel).to(at::kFloat);
    writer_->write(
        tensor.name,
        {static_cast<const std::byte*>(gradient.const_data_ptr()),
         static_cast<size_t>(tensor.bytes())});
  }
  writer_->commit();
}

} // namespace palimpsest
