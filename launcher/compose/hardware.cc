#include <palimpsest/launcher/compose/hardware.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/files.h>
#include <palimpsest/core/config/assign.h>
#include <palimpsest/core/config/document.h>
#include <palimpsest/core/config/schema.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>
#include <system_error>

namespace palimpsest {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;

struct BuiltIn {
  const char* name;
  const char* text;
};

// Peaks are the vendors' for dense products. Efficiency: the largest share that matrix products in
// bf16 were measured to reach (S. Bekman, Machine Learning Engineering, "Maximum Achievable Matmul
// FLOPS": H100 792 of 989, A100 268 of 312; unknown, so 1, for the L4). Memory is what the name
// says in powers of ten: the rest of the chips' is the driver's and the libraries'. Latencies of
// links are NCCL's own for rings of its Simple protocol (src/graph/tuning.cc); of a kernel, what a
// launch takes.
constexpr BuiltIn kBuiltIns[] = {
    // NVIDIA H100 datasheet (SXM5): 989.4 and 66.9 TFLOP/s, 3.35 TB/s, NVLink 900 GB/s both ways.
    // DGX H100 user guide: 8 GPUs, one 400 Gb/s port each.
    {"h100-80",
     "{flops: {bf16: 989.4e12, fp32: 66.9e12, efficiency: 0.8}, memory: 80GB, bandwidth: 3.35e12, "
     "latency: 4e-6, ranks_per_node: 8, node: {bandwidth: 450e9, latency: 3.4e-6}, "
     "network: {bandwidth: 50e9, latency: 14e-6}}"},
    // NVIDIA A100 datasheet (SXM4): 312 and 19.5 TFLOP/s, 2,039 GB/s, NVLink 600 GB/s both ways.
    // DGX A100 user guide: 8 GPUs, one 200 Gb/s port each.
    {"a100-80",
     "{flops: {bf16: 312e12, fp32: 19.5e12, efficiency: 0.86}, memory: 80GB, bandwidth: 2.039e12, "
     "latency: 4e-6, ranks_per_node: 8, node: {bandwidth: 300e9, latency: 3.4e-6}, "
     "network: {bandwidth: 25e9, latency: 14e-6}}"},
    // The same with 40 GB: 1,555 GB/s.
    {"a100-40",
     "{flops: {bf16: 312e12, fp32: 19.5e12, efficiency: 0.86}, memory: 40GB, bandwidth: 1.555e12, "
     "latency: 4e-6, ranks_per_node: 8, node: {bandwidth: 300e9, latency: 3.4e-6}, "
     "network: {bandwidth: 25e9, latency: 14e-6}}"},
    // NVIDIA L4 datasheet: 121 (242 with sparsity) and 30.3 TFLOP/s, 300 GB/s, PCIe 4 x16 at 64 GB/s
    // both ways. Google Cloud g2-standard-96: 8 GPUs share 100 Gb/s.
    {"l4-24",
     "{flops: {bf16: 121e12, fp32: 30.3e12}, memory: 24GB, bandwidth: 300e9, latency: 4e-6, "
     "ranks_per_node: 8, node: {bandwidth: 32e9, latency: 5.7e-6}, "
     "network: {bandwidth: 1.5625e9, latency: 14e-6}}"},
    // A rank of two AVX-512 cores (AMD EPYC), as measured: oneDNN's products 490 and 950 GFLOP/s,
    // copies 111 GB/s. Links of 10 Gb/s.
    {"cpu",
     "{flops: {bf16: 950e9, fp32: 490e9}, memory: 16GB, bandwidth: 111e9, latency: 5e-6, "
     "attention_threads: 2, network: {bandwidth: 1.25e9, latency: 50e-6}, overlap: false}"},
};

/// A sentence for each required key that is missing in a section that is there.
void check_required(const Message& section, const std::string& path, Problems& problems) {
  const auto& descriptor = *section.GetDescriptor();
  const auto& reflection = *section.GetReflection();
  for (int index = 0; index < descriptor.field_count(); ++index) {
    const auto& field = *descriptor.field(index);
    const std::string full = join_path(path, field.name());
    const bool there = reflection.HasField(section, &field);
    if (there && is_section(field)) {
      check_required(reflection.GetMessage(section, &field), full, problems);
    } else if (!there && options_of(field).required()) {
      problems.push_back(fmt::format(
          "{} is missing; give {}",
          full,
          is_section(field)
              ? fmt::format("a section of {}", fmt::join(key_names(*field.message_type()), ", "))
              : describe_allowed(field)));
    }
  }
}

/// What is set. Protobuf's own JSON has 64-bit integers in quotes, which a file may not have.
nlohmann::ordered_json json_of(const Message& section) {
  auto json = nlohmann::ordered_json::object();
  const auto& descriptor = *section.GetDescriptor();
  const auto& reflection = *section.GetReflection();
  for (int index = 0; index < descriptor.field_count(); ++index) {
    const auto& field = *descriptor.field(index);
    if (!reflection.HasField(section, &field)) {
      continue;
    }
    auto& value = json[field.name()];
    switch (field.cpp_type()) {
      case FieldDescriptor::CPPTYPE_MESSAGE:
        value = json_of(reflection.GetMessage(section, &field));
        break;
      case FieldDescriptor::CPPTYPE_BOOL:
        value = reflection.GetBool(section, &field);
        break;
      case FieldDescriptor::CPPTYPE_INT64:
        value = reflection.GetInt64(section, &field);
        break;
      case FieldDescriptor::CPPTYPE_DOUBLE:
        value = reflection.GetDouble(section, &field);
        break;
      default:
        value = reflection.GetString(section, &field);
    }
  }
  return json;
}

/// How many of a group's `size` ranks with `stride` between them sit on the same node; where nodes
/// cut the group unevenly, the fewest.
int ranks_on_a_node(int size, int stride, int64_t ranks_per_node) {
  const int64_t fit = ranks_per_node % stride == 0 ? ranks_per_node / stride : 1;
  return static_cast<int>(std::gcd(int64_t{size}, fit));
}

/// A collective of `ranks`, `together` of them on each node.
class Collectives {
 public:
  Collectives(const Hardware& hardware, int ranks, int together)
      : node_(hardware.has_node() ? hardware.node() : hardware.network()),
        network_(hardware.network()), ranks_(ranks), together_(together) {}

  /// All get `whole` bytes, of which each has a part.
  double gather(double whole) const {
    const double others = whole * (ranks_ - 1) / ranks_;
    const double other_nodes = whole * (ranks_ - together_) / ranks_;
    return seconds(others, other_nodes / together_) + hops();
  }
  /// Each gets its part of all others' `whole` bytes, from them directly.
  double scatter(double whole) const {
    return seconds(whole * (together_ - 1) / ranks_, whole * (ranks_ - together_) / ranks_) +
        (ranks_ > together_ ? network_.latency() : node_.latency());
  }

 private:
  double seconds(double in_node, double to_others) const {
    return std::max(in_node / node_.bandwidth(), to_others / network_.bandwidth());
  }
  double hops() const {
    return (together_ - 1) * node_.latency() + (ranks_ / together_ - 1) * network_.latency();
  }

  const Hardware::Link& node_;
  const Hardware::Link& network_;
  int ranks_;
  int together_;
};

double collective_seconds(const Hardware& hardware, const Op& op, const Job& job) {
  const Mesh& mesh = job.mesh();
  const auto bytes = [&](SlotKind kind) {
    return static_cast<double>(job.size({.kind = kind, .owner = op.unit}));
  };
  const auto among = [&](int size, int stride) {
    return Collectives(hardware, size, ranks_on_a_node(size, stride, hardware.ranks_per_node()));
  };
  switch (op.kind) {
    case OpKind::kGather:
    case OpKind::kPublish:
      return mesh.shard > 1 ? among(mesh.shard, 1).gather(bytes(SlotKind::kParam)) : 0;
    case OpKind::kReduce: {
      const int ranks = job.axis_ranks(op.unit, op.axis);
      if (ranks == 1) {
        return 0;
      }
      if (op.axis == ReduceAxis::kShard) {
        return among(ranks, 1).scatter(bytes(SlotKind::kGradBuffer));
      }
      const int stride = op.axis == ReduceAxis::kReplicate ? mesh.shard : mesh.data();
      return 2 * among(ranks, stride).gather(bytes(job.gradient(op.unit).kind));
    }
    case OpKind::kSend:
      return static_cast<double>(job.size(op.slot)) / hardware.network().bandwidth() +
          hardware.network().latency();
    default:
      return 0;
  }
}

} // namespace

std::vector<std::string> hardware_names() {
  std::vector<std::string> names;
  for (const BuiltIn& known : kBuiltIns) {
    names.emplace_back(known.name);
  }
  return names;
}

Hardware parse_hardware(std::string_view text, const std::string& file) {
  Problems problems;
  Origins origins;
  Hardware hardware;
  const DocumentNode document = parse_document(text, file, problems);
  if (document.kind != DocumentNode::Kind::kMap) {
    throw UserError(
        "{}: holds {} instead of keys such as flops, memory and network", file, describe(document));
  }
  assign(document, {file}, hardware, origins, problems);
  Problems missing;
  check_required(hardware, "", missing);
  for (const std::string& problem : missing) {
    const std::string key = problem.substr(0, problem.find(' '));
    if (!origins.contains(key)) { // else it was given wrongly, which is said already
      problems.push_back(fmt::format("{}: {}", file, problem));
    }
  }
  if (!problems.empty()) {
    throw UserError("{}", fmt::join(problems, "\n"));
  }
  if (!hardware.has_name()) {
    hardware.set_name(std::filesystem::path(file).stem().string());
  }
  return hardware;
}

Hardware load_hardware(const std::string& name_or_file, std::string_view asked_by) {
  for (const BuiltIn& known : kBuiltIns) {
    if (name_or_file == known.name) {
      Hardware hardware = parse_hardware(known.text, name_or_file);
      hardware.set_name(name_or_file);
      return hardware;
    }
  }
  std::error_code error;
  if (!std::filesystem::exists(name_or_file, error)) {
    throw UserError(
        "{}: '{}' is neither a file nor one of {}",
        asked_by,
        name_or_file,
        fmt::join(hardware_names(), ", "));
  }
  return parse_hardware(read_file(name_or_file), name_or_file);
}

std::string to_json(const Hardware& hardware) {
  return json_of(hardware).dump(2) + "\n";
}

double peak_flops(const Hardware& hardware, at::ScalarType compute) {
  const Hardware::Flops& flops = hardware.flops();
  return compute != at::kFloat && flops.has_bf16() ? flops.bf16() : flops.fp32();
}

DeviceSpeed device_speed(const Hardware& hardware, at::ScalarType compute) {
  return {
      .flops = peak_flops(hardware, compute) * hardware.flops().efficiency(),
      .bandwidth = hardware.bandwidth(),
      .latency = hardware.latency(),
      .attention_threads = hardware.attention_threads()};
}

LinkSeconds link_seconds(const Hardware& hardware) {
  return [hardware](const Op& op, const Job& job) { return collective_seconds(hardware, op, job); };
}

} // namespace palimpsest
