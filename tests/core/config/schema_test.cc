// Covers: core/config/reference.cc
#include <palimpsest/core/config/loader.h>
#include <palimpsest/core/config/reference.h>
#include <palimpsest/core/config/schema.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <sstream>

namespace palimpsest {
namespace {

using google::protobuf::Descriptor;
using google::protobuf::FieldDescriptor;

void for_each_key(
    const Descriptor& section,
    const std::function<void(const FieldDescriptor&)>& visit) {
  for (int i = 0; i < section.field_count(); ++i) {
    visit(*section.field(i));
    if (is_section(*section.field(i))) {
      for_each_key(*section.field(i)->message_type(), visit);
    }
  }
}

TEST(Schema, EveryKeySaysWhatItIs) {
  int keys = 0;
  for_each_key(*RunConfig::descriptor(), [&](const FieldDescriptor& field) {
    ++keys;
    const KeyOptions& options = options_of(field);
    EXPECT_NE(options.help(), "") << field.full_name();
    if (is_section(field)) {
      return;
    }
    // Either a default, or a word on what holds without, or required.
    const int ways = (default_text(field) ? 1 : 0) + (options.has_when_unset() ? 1 : 0) +
        (options.required() ? 1 : 0);
    EXPECT_EQ(ways, 1) << field.full_name();
  });
  EXPECT_GT(keys, 100);
}

TEST(Schema, DefaultsAreAllowed) {
  for_each_key(*RunConfig::descriptor(), [&](const FieldDescriptor& field) {
    const KeyOptions& options = options_of(field);
    const auto text = default_text(field);
    if (!text || is_section(field) || field.is_repeated()) {
      return;
    }
    if (!options.allowed().empty()) {
      EXPECT_THAT(options.allowed(), ::testing::Contains(*text)) << field.full_name();
    }
    if (options.has_min()) {
      EXPECT_GE(std::stod(*text), options.min()) << field.full_name();
    }
    if (options.has_max()) {
      EXPECT_LE(std::stod(*text), options.max()) << field.full_name();
    }
  });
}

TEST(Schema, DescribesWhatIsAllowed) {
  const auto describe = [](const Descriptor* section, const char* name) {
    return describe_allowed(*section->FindFieldByName(name));
  };
  EXPECT_EQ(describe(RunConfig::Optimizer::descriptor(), "eps"), "a number above 0");
  EXPECT_EQ(describe(RunConfig::Optimizer::descriptor(), "name"), "adamw, sgd");
  EXPECT_EQ(
      describe(RunConfig::Optimizer::descriptor(), "betas"),
      "a list of 2, each a number of at least 0 and below 1");
  EXPECT_EQ(
      describe(RunConfig::Memory::descriptor(), "host_budget"),
      "a size of at least 1: bytes such as 4096, or with a unit such as 500 MB or 8GiB (kB, MB, "
      "GB, TB are powers of 1000; KiB, MiB, GiB, TiB of 1024), or auto");
  EXPECT_EQ(describe(RunConfig::Training::descriptor(), "reproducible"), "true or false");
}

TEST(Schema, NumbersReadBackTheSame) {
  EXPECT_EQ(number_text(10000), "10000");
  EXPECT_EQ(number_text(0.1), "0.1");
  EXPECT_EQ(number_text(-3), "-3");
  for (const double number : {2e-5, 1.0 / 3, 1e300, 1e-300, 1e15, 123456789012345.0, 0.0}) {
    EXPECT_EQ(std::stod("0" + number_text(number)), number);
  }
}

TEST(Schema, ValuesByDottedKey) {
  RunConfig config;
  EXPECT_EQ(value_text(config, "parallel.zero"), "0");
  EXPECT_EQ(value_text(config, "lora"), std::nullopt);
  EXPECT_EQ(value_text(config, "lora.rank"), std::nullopt);
  EXPECT_EQ(value_text(config, "training.steps"), std::nullopt);
  config.mutable_lora()->set_rank(3);
  config.mutable_data()->add_files("a");
  config.mutable_data()->add_files("b");
  EXPECT_EQ(value_text(config, "lora"), "set");
  EXPECT_EQ(value_text(config, "lora.rank"), "3");
  EXPECT_EQ(value_text(config, "data.files"), "[a, b]");
}

TEST(Reference, TheCommittedPageIsCurrent) {
  std::ifstream file(std::string(PALIMPSEST_DOCS) + "/config.md");
  std::ostringstream page;
  page << file.rdbuf();
  EXPECT_TRUE(page.str() == config_reference()) << "docs/config.md differs from the schema: run "
                                                   "`palimpsest config reference > docs/config.md`";
}

TEST(Reference, HasEveryKey) {
  const std::string page = config_reference();
  for_each_key(*RunConfig::descriptor(), [&](const FieldDescriptor& field) {
    EXPECT_THAT(page, ::testing::HasSubstr("| `" + field.name() + "` |"));
  });
}

} // namespace
} // namespace palimpsest
