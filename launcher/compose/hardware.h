#pragma once

// A cluster that need not be there: arithmetic, memory and links of a rank, by name or from a file.
//
//   const Hardware hardware = load_hardware("h100-80");                 // or "cluster.yaml", "cluster.json"
//   const DeviceSpeed speed = device_speed(hardware, at::kBFloat16);
//   simulate_lockstep(plans, job, link_seconds(hardware));
//
// The schema is hardware.proto.

#include <palimpsest/core/models/decoder_cost.h>
#include <palimpsest/core/plan/lockstep.h>
#include <palimpsest/launcher/compose/hardware.pb.h>

#include <c10/core/ScalarType.h>

#include <string>
#include <string_view>
#include <vector>

namespace palimpsest {

/// h100-80, a100-80, a100-40, l4-24, cpu.
std::vector<std::string> hardware_names();

/// A built-in one, else the file of that name. UserError naming the file's line and field, what was
/// given and what is allowed. `asked_by`: the option or key that it is the value of.
Hardware load_hardware(const std::string& name_or_file, std::string_view asked_by = "--hardware");

/// The same from text; `file` stands for its name in messages, and ends in .json for JSON.
Hardware parse_hardware(std::string_view text, const std::string& file);

/// Reads back as the same hardware.
std::string to_json(const Hardware& hardware);

/// Operations per second at the peak, of products in fp32, bf16 or fp16: devices have one peak for
/// both halves.
double peak_flops(const Hardware& hardware, at::ScalarType compute);

DeviceSpeed device_speed(const Hardware& hardware, at::ScalarType compute);

/// What collectives take, from the bytes that pass a rank's link in its node and its link to other
/// nodes, whichever takes longer, and the latency of each hop of a ring. Gathers and sums over
/// replicas are rings whose way leads once through each node, so the links of a node's ranks share
/// the work; sums over shards exchange parts directly, as this program's engines do.
LinkSeconds link_seconds(const Hardware& hardware);

} // namespace palimpsest
