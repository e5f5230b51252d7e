#include <palimpsest/core/data/tensors_file.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/read_sample.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/core/data/tensors.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace palimpsest {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::ThrowsMessage;

const std::vector<int64_t> kIds = {5, 6, 2, 7, 2, 0};
const std::vector<int64_t> kLabels = {5, 6, 2, 7, 2, -100};

TEST(TokenTensorsFile, ShiftsTheFilesLabels) {
  const TemporaryFolder folder;
  Notes notes;
  const TokenTensorsFile file(
      folder.write(
          "a.safetensors",
          safetensors_text(
              {test_tensor("input_ids", "I64", {2, 3}, kIds),
               test_tensor("labels", "I64", {2, 3}, kLabels)})),
      std::nullopt,
      8,
      notes);
  ASSERT_EQ(file.size(), 2);
  EXPECT_EQ(file.input_size(), 3);
  EXPECT_EQ(read_sample(file, 0).inputs, (Ids{5, 6, 2}));
  EXPECT_EQ(read_sample(file, 0).labels, (Ids{6, 2, -100}));
  EXPECT_EQ(read_sample(file, 1).inputs, (Ids{7, 2, 0}));
  EXPECT_EQ(read_sample(file, 1).labels, (Ids{2, -100, -100}));
  EXPECT_THAT(notes, IsEmpty());
}

TEST(TokenTensorsFile, ReadsInt32AtAnyAlignment) {
  const TemporaryFolder folder;
  Notes notes;
  const std::vector<int32_t> ids(kIds.begin(), kIds.end());
  const TokenTensorsFile file(
      folder.write(
          "a.safetensors",
          safetensors_text(
              {test_tensor("pad", "U8", {1}, std::vector<uint8_t>{1}),
               test_tensor("input_ids", "I32", {2, 3}, ids),
               test_tensor("labels", "I64", {2, 3}, kLabels)})),
      3,
      8,
      notes);
  EXPECT_EQ(read_sample(file, 1).inputs, (Ids{7, 2, 0}));
  EXPECT_EQ(read_sample(file, 1).labels, (Ids{2, -100, -100}));
}

TEST(TokenTensorsFile, TellsOfAFileWithoutTargets) {
  const TemporaryFolder folder;
  Notes notes;
  const std::vector<int64_t> labels = {
      5, -100, -100, 7, -100, -100}; // first labels predict nothing
  const TokenTensorsFile file(
      folder.write(
          "a.safetensors",
          safetensors_text(
              {test_tensor("input_ids", "I64", {2, 3}, kIds),
               test_tensor("labels", "I64", {2, 3}, labels)})),
      std::nullopt,
      8,
      notes);
  EXPECT_EQ(file.size(), 2);
  ASSERT_EQ(notes.size(), 1);
  EXPECT_THAT(notes[0], HasSubstr("has no target"));
}

TEST(TokenTensorsFile, RefusesFilesItCannotTrainOn) {
  const TemporaryFolder folder;
  const auto refused =
      [&](const std::string& bytes, const std::string& part, std::optional<int64_t> length = {}) {
        const auto path = folder.write("bad.safetensors", bytes);
        Notes notes;
        EXPECT_THAT(
            [&] { TokenTensorsFile(path, length, 8, notes); },
            ThrowsMessage<UserError>(AllOf(HasSubstr("bad.safetensors"), HasSubstr(part))));
      };
  const TestTensor ids = test_tensor("input_ids", "I64", {2, 3}, kIds);
  const TestTensor labels = test_tensor("labels", "I64", {2, 3}, kLabels);
  const auto changed = [](TestTensor tensor, const auto& change) {
    change(tensor);
    return tensor;
  };
  refused("", "");
  refused("not a tensor file", "");
  refused(safetensors_text({labels}), "no tensor input_ids; it has labels");
  refused(safetensors_text({}), "no tensor input_ids; it has none");
  refused(safetensors_text({ids}), "no tensor labels");
  refused(
      safetensors_text({changed(ids, [](auto& t) { t.dtype = "F64"; }), labels}),
      "input_ids is F64; it must be I64 or I32");
  refused(safetensors_text({changed(ids, [](auto& t) { t.shape = {6}; }), labels}), "shape [6]");
  refused(
      safetensors_text(
          {changed(
               ids,
               [](auto& t) {
                 t.shape = {3, 2};
               }),
           labels}),
      "labels have shape [2, 3] and input_ids [3, 2]");
  refused(
      safetensors_text({test_tensor<int64_t>("input_ids", "I64", {0, 3}, {}), labels}),
      "holds no sample");
  refused(safetensors_text({ids, labels}), "data.sequence_length: 4 contradicts", 4);
  const auto with = [](std::vector<int64_t> values, size_t place, int64_t value) {
    values[place] = value;
    return values;
  };
  for (const int64_t bad :
       {int64_t{8}, int64_t{-1}, int64_t{-100}, std::numeric_limits<int64_t>::max()}) {
    refused(
        safetensors_text({test_tensor("input_ids", "I64", {2, 3}, with(kIds, 4, bad)), labels}),
        "input_ids[1, 1] is " + std::to_string(bad));
  }
  for (const int64_t bad :
       {int64_t{8}, int64_t{-1}, int64_t{-101}, std::numeric_limits<int64_t>::min()}) {
    refused(
        safetensors_text({ids, test_tensor("labels", "I64", {2, 3}, with(kLabels, 2, bad))}),
        "labels[0, 2] is " + std::to_string(bad));
  }
}

TEST(FeatureTensorsFile, ReadsRows) {
  const TemporaryFolder folder;
  const FeatureTensorsFile file(
      folder.write(
          "a.safetensors",
          safetensors_text(
              {test_tensor<float>("inputs", "F32", {2, 3}, {1, 2, 3, 4, 5, 6}),
               test_tensor<float>("targets", "F32", {2, 1}, {7, 8})})),
      3,
      1);
  EXPECT_EQ(file.kind(), SampleKind::kFeatures);
  ASSERT_EQ(file.size(), 2);
  std::vector<float> inputs(3);
  std::vector<float> targets(1);
  file.read(1, inputs.data(), targets.data());
  EXPECT_EQ(inputs, (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(targets, (std::vector<float>{8}));
}

TEST(FeatureTensorsFile, RefusesFilesItCannotTrainOn) {
  const TemporaryFolder folder;
  const auto refused = [&](const std::vector<TestTensor>& tensors, const std::string& part) {
    const auto path = folder.write("bad.safetensors", safetensors_text(tensors));
    EXPECT_THAT(
        [&] { FeatureTensorsFile(path, 2, 1); },
        ThrowsMessage<UserError>(AllOf(HasSubstr("bad.safetensors"), HasSubstr(part))));
  };
  const auto inputs = test_tensor<float>("inputs", "F32", {2, 2}, {1, 2, 3, 4});
  const auto targets = test_tensor<float>("targets", "F32", {2, 1}, {1, 2});
  refused({inputs}, "no tensor targets; it has inputs");
  refused(
      {test_tensor<float>("inputs", "F32", {2, 3}, {1, 2, 3, 4, 5, 6}), targets},
      "model.input_size is 2");
  refused(
      {inputs, test_tensor<float>("targets", "F32", {2, 2}, {1, 2, 3, 4})},
      "model.output_size is 1");
  refused(
      {inputs, test_tensor<float>("targets", "F32", {3, 1}, {1, 2, 3})},
      "inputs have 2 samples and targets 3");
  refused(
      {test_tensor<int32_t>("inputs", "I32", {2, 2}, {1, 2, 3, 4}), targets},
      "inputs is I32; it must be F32");
  refused(
      {test_tensor<float>("inputs", "F32", {2, 2}, {1, 2, NAN, 4}), targets},
      "inputs[1, 0] is nan");
}

} // namespace
} // namespace palimpsest
