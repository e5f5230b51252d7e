// Covers: launcher/compose/gradient_dump.cc
// What is dumped, and how a scalar keeps its shape [] on its way through files.

#include <palimpsest/core/models/weights.h>
#include <palimpsest/launcher/compose/gradient_dump.h>
#include <palimpsest/tests/core/engine/scalar_chain.h>
#include <palimpsest/tests/launcher/run/run_testing.h>

#include <ATen/ops/full.h>

namespace palimpsest {
namespace {

using testing::TestFolder;

TEST(GradientDump, WritesTrainedParametersOnceAtTheFirstAgreement) {
  const TestFolder folder;
  const std::filesystem::path file = folder / "gradients.safetensors";
  testing::Counts counts;
  Chain chain = testing::scalar_chain(1, {0}, counts);
  chain.units.push_back(std::make_unique<ParamUnit>(
      "pair",
      std::vector<Parameter>{{.name = "b", .shape = {2}}, {.name = "a", .shape = {1, 2}}},
      at::kBFloat16,
      true));
  chain.units.push_back(std::make_unique<ParamUnit>(
      "frozen", std::vector<Parameter>{{.name = "f", .shape = {2}}}, at::kFloat, false));
  chain.units[0]->bind_grad(at::full({1}, 3.0F));
  const at::Tensor pair = at::full({4}, 1.0F);
  pair[2] = 7;
  chain.units[1]->bind_grad(pair);

  const auto lead = [&](const auto& use) {
    use([&](int unit) { return UnitValues{.values = chain.units[unit]->grad()}; });
  };
  GradientDump dump(file, chain, lead);
  dump.op_end(0, Op::load(0));
  dump.op_end(1, Op::update(0));
  EXPECT_FALSE(std::filesystem::exists(file));
  dump.op_end(2, Op::agree());
  pair.fill_(9);
  dump.op_end(3, Op::agree()); // the next step's

  const SafetensorsFile written(file);
  EXPECT_EQ(written.tensors().size(), 3U);
  EXPECT_TRUE(written.at("w0").shape.empty());
  EXPECT_EQ(written.at("a").shape, (std::vector<int64_t>{1, 2}));
  const auto values = testing::floats(file);
  EXPECT_EQ(values.at("w0"), (std::vector<float>{3}));
  EXPECT_EQ(values.at("a"), (std::vector<float>{7, 1}));
  EXPECT_EQ(values.at("b"), (std::vector<float>{1, 1}));
}

TEST(GradientDump, AScalarParameterIsWrittenAndReadAsOne) {
  const TestFolder folder;
  testing::Counts counts;
  Chain chain = testing::scalar_chain(1, {0}, counts);
  const at::Tensor flat = at::full({1}, 0.7F);
  const UnitSource source = [&](int) { return UnitValues{.values = flat}; };
  const HfFolderLayout layout = new_layout("{}", declarations(chain));
  write_hf_folder(folder / "model", layout, export_filler(chain, source));
  const HfFolder read(folder / "model");
  EXPECT_TRUE(read.at("w0").shape.empty());
  flat.fill_(0);
  load_weights(read, chain, source);
  EXPECT_EQ(flat.item<float>(), 0.7F);
}

} // namespace
} // namespace palimpsest
