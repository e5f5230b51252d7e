// Covers: launcher/compose/hardware.cc

#include <palimpsest/launcher/compose/hardware.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr const char* kSmall =
    "flops: {bf16: 8e12, fp32: 2e12, efficiency: 0.5}\n"
    "memory: 16GiB\n"
    "bandwidth: 1e11\n"
    "latency: 1e-5\n"
    "ranks_per_node: 4\n"
    "node: {bandwidth: 1000, latency: 0.3}\n"
    "network: {bandwidth: 10, latency: 0.7}\n";

TEST(Hardware, EveryBuiltInReadsBackFromItsJson) {
  const std::vector<std::string> names = hardware_names();
  EXPECT_THAT(names, ::testing::IsSupersetOf({"h100-80", "a100-80", "a100-40", "l4-24", "cpu"}));
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    const Hardware hardware = load_hardware(name);
    EXPECT_EQ(hardware.name(), name);
    EXPECT_GE(peak_flops(hardware, at::kBFloat16), peak_flops(hardware, at::kFloat));
    const Hardware again = parse_hardware(to_json(hardware), "again.json");
    EXPECT_EQ(again.SerializeAsString(), hardware.SerializeAsString());
  }
}

TEST(Hardware, TheNamesSayTheMemory) {
  EXPECT_EQ(load_hardware("h100-80").memory(), 80'000'000'000);
  EXPECT_EQ(load_hardware("a100-40").memory(), 40'000'000'000);
  EXPECT_EQ(load_hardware("l4-24").memory(), 24'000'000'000);
}

TEST(Hardware, ReadsAFile) {
  const auto folder = make_temporary_folder();
  std::ofstream(folder / "small.yaml") << kSmall;
  const Hardware hardware = load_hardware((folder / "small.yaml").string());
  std::filesystem::remove_all(folder);
  EXPECT_EQ(hardware.name(), "small");
  EXPECT_EQ(hardware.memory(), int64_t{16} << 30);
  EXPECT_TRUE(hardware.overlap());
  const DeviceSpeed speed = device_speed(hardware, at::kBFloat16);
  EXPECT_EQ(speed.flops, 4e12);
  EXPECT_EQ(speed.bandwidth, 1e11);
  EXPECT_EQ(speed.latency, 1e-5);
  EXPECT_EQ(speed.attention_threads, 0);
  EXPECT_EQ(device_speed(hardware, at::kFloat).flops, 1e12);
  EXPECT_EQ(peak_flops(hardware, at::kFloat), 2e12);
}

TEST(Hardware, AWrongFileIsToldByItsField) {
  const auto refusal = [](const std::string& text, const auto& message) {
    EXPECT_THAT([&] { parse_hardware(text, "small.yaml"); }, ThrowsMessage<UserError>(message))
        << text;
  };
  const std::string good = kSmall;
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  refusal(changed("memory: 16GiB\n", ""), HasSubstr("small.yaml: memory is missing; give"));
  refusal(changed("network: {bandwidth: 10, latency: 0.7}\n", ""), HasSubstr("network is missing"));
  refusal(
      changed("bandwidth: 10,", ""), HasSubstr("small.yaml: network.bandwidth is missing; give"));
  refusal(
      changed("memory: 16GiB", "memory: lots"),
      AllOf(HasSubstr("small.yaml:2: memory"), HasSubstr("lots is not allowed; give a size")));
  refusal(changed("1e11", "-1"), AllOf(HasSubstr("small.yaml:3: bandwidth"), HasSubstr("-1")));
  refusal(changed("efficiency: 0.5", "efficiency: 1.5"), HasSubstr("flops.efficiency"));
  refusal(
      changed("ranks_per_node", "rank_per_node"),
      AllOf(HasSubstr("rank_per_node"), HasSubstr("did you mean ranks_per_node?")));
  refusal( // what another file's schema has is no advice
      changed("ranks_per_node", "steps"),
      HasSubstr("steps: unknown key; allowed: name, flops"));
  refusal("[1, 2]", HasSubstr("small.yaml: holds a list"));
  refusal("memory: {", HasSubstr("small.yaml"));
  EXPECT_THAT(
      [] { load_hardware("h100"); },
      ThrowsMessage<UserError>(AllOf(HasSubstr("'h100' is neither a file"), HasSubstr("h100-80"))));
}

/// One unit of 1,600 bytes in each of parameters and gradients.
Job job_of(const Mesh& mesh, int zero) {
  JobDescription description;
  description.model.units = {{.name = "unit", .parameter_bytes = 1600, .gradient_bytes = 1600}};
  description.model.blocks = {
      {.name = "block", .reads = {{kLoader, 0}}, .value_bytes = {1}, .units = {0}},
      {.name = "loss", .reads = {{0, 0}}}};
  description.stages = {{0, 2}};
  description.mesh = mesh;
  description.placement.zero = zero;
  return Job(std::move(description));
}

double seconds(const Mesh& mesh, int zero, const Op& op) {
  return link_seconds(parse_hardware(kSmall, "small.yaml"))(op, job_of(mesh, zero));
}

// Nodes of 4 ranks; 1,000 bytes a second within, 10 between; hops of 0.3 and 0.7 seconds.
TEST(Hardware, AGatherLeadsOnceThroughEachNode) {
  const Op gather = Op::gather(0);
  EXPECT_DOUBLE_EQ(seconds({.shard = 4}, 3, gather), 1200.0 / 1000 + 3 * 0.3);
  // 12 of 16 parts come from other nodes, over 4 links
  EXPECT_DOUBLE_EQ(seconds({.shard = 16}, 3, gather), 1200.0 / 4 / 10 + 3 * 0.3 + 3 * 0.7);
  // groups of 6 lie over nodes as 4 + 2 or 2 + 4: two links take 4 of 6 parts
  EXPECT_DOUBLE_EQ(
      seconds({.replicate = 2, .shard = 6}, 3, gather), 1600.0 * 4 / 6 / 2 / 10 + 0.3 + 2 * 0.7);
  // groups of 3 are cut so that one rank may be alone
  EXPECT_DOUBLE_EQ(seconds({.replicate = 4, .shard = 3}, 3, gather), 1600.0 * 2 / 3 / 10 + 2 * 0.7);
  EXPECT_EQ(seconds({.replicate = 4}, 0, gather), 0);
}

TEST(Hardware, ASumOverShardsExchangesPartsDirectly) {
  const Op sum = Op::reduce(0, {0, 1}, ReduceAxis::kShard);
  EXPECT_DOUBLE_EQ(seconds({.shard = 4}, 3, sum), 1200.0 / 1000 + 0.3);
  EXPECT_DOUBLE_EQ(seconds({.shard = 16}, 3, sum), 1200.0 / 10 + 0.7);
}

TEST(Hardware, ASumOverReplicasGoesAroundTwice) {
  const Op sum = Op::reduce(0, {0, 1}, ReduceAxis::kReplicate);
  EXPECT_DOUBLE_EQ(seconds({.replicate = 4}, 0, sum), 2 * (1200.0 / 1000 + 3 * 0.3));
  // shards of 800 bytes; every other rank of two nodes
  EXPECT_DOUBLE_EQ(
      seconds({.replicate = 4, .shard = 2}, 3, sum), 2 * (800.0 / 2 / 2 / 10 + 0.3 + 0.7));
  // a rank of each node
  EXPECT_DOUBLE_EQ(
      seconds({.replicate = 4, .shard = 4}, 3, sum), 2 * (400.0 * 3 / 4 / 10 + 3 * 0.7));
}

TEST(Hardware, WithoutANodesLinkAllIsTheNetwork) {
  Hardware hardware = parse_hardware(kSmall, "small.yaml");
  hardware.clear_node();
  EXPECT_DOUBLE_EQ(
      link_seconds(hardware)(Op::gather(0), job_of({.shard = 4}, 3)), 1200.0 / 10 + 3 * 0.7);
}

} // namespace
} // namespace palimpsest
