#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/host_list.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>

#include <unistd.h>

#include <fstream>

namespace palimpsest {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

template <typename Action>
std::string refusal(const Action& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(SlurmHosts, CompressedLists) {
  const auto expand = [](const char* list) { return expand_slurm_hosts(list, "LIST"); };
  EXPECT_THAT(expand("node1"), ElementsAre("node1"));
  EXPECT_THAT(
      expand("node[01-03,07],gpu-a[1-2]-b"),
      ElementsAre("node01", "node02", "node03", "node07", "gpu-a1-b", "gpu-a2-b"));
  EXPECT_THAT(expand("r[1-2]n[0-1]"), ElementsAre("r1n0", "r1n1", "r2n0", "r2n1"));
  EXPECT_THAT(expand("n[8-11]"), ElementsAre("n8", "n9", "n10", "n11"));
  EXPECT_THAT(expand("n[099-101]"), ElementsAre("n099", "n100", "n101"));
  EXPECT_THAT(expand("a.example.org,b-2"), ElementsAre("a.example.org", "b-2"));
  EXPECT_THAT(expand("[1-2]x"), ElementsAre("1x", "2x"));
  EXPECT_EQ(expand("n[0-65535]").size(), 65536u);
}

TEST(SlurmHosts, BadListsAreRefusedByName) {
  for (const char* list :
       {"",
        ",",
        "a,",
        "a,,b",
        "n[1",
        "n1]",
        "n[[1]]",
        "n[]",
        "n[2-1]",
        "n[a-b]",
        "n[1-]",
        "n[-1]",
        "n[1,]",
        "n 1",
        "n[0-65536]",
        "n[0-999][0-999]",
        "n[1-99999999999]",
        "a/b"}) {
    EXPECT_THAT(
        refusal([&] { expand_slurm_hosts(list, "SLURM_STEP_NODELIST"); }),
        HasSubstr("SLURM_STEP_NODELIST"))
        << list;
  }
}

TEST(SlurmHosts, Counts) {
  EXPECT_THAT(expand_slurm_counts("4", "X"), ElementsAre(4));
  EXPECT_THAT(expand_slurm_counts("2(x3),1", "X"), ElementsAre(2, 2, 2, 1));
  for (const char* list :
       {"", "x", "2(x", "2(x0)", "0", "-1", "2(3)", "2(x3)4", "1,", "1(x99999)"}) {
    EXPECT_THAT(refusal([&] { expand_slurm_counts(list, "COUNTS"); }), HasSubstr("COUNTS")) << list;
  }
}

class Hostfile : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = make_temporary_folder("hosts");
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  std::vector<HostSlots> read(const std::string& text) {
    std::ofstream(path()) << text;
    return read_hostfile(path());
  }
  std::string refuse(const std::string& text) {
    return refusal([&] { read(text); });
  }
  std::filesystem::path path() const {
    return folder_ / "hosts";
  }
  std::filesystem::path folder_;
};

HostSlots host(const std::string& name, std::vector<int> slots) {
  return {name, std::move(slots)};
}

TEST_F(Hostfile, EveryForm) {
  EXPECT_THAT(
      read("# comment\n\n   \t \r\n"
           "h1 slots=2 # note\r\n"
           "\th2\tslots=1  max_slots=4\n"
           "h3:3\n"
           "h4\n"
           "   # indented comment\n"
           "h5 max-slots=2"),
      ElementsAre(
          host("h1", {0, 1}),
          host("h2", {0}),
          host("h3", {0, 1, 2}),
          host("h4", {0}),
          host("h5", {0})));
}

TEST_F(Hostfile, BareNamesAddUpStatedOnesMayNot) {
  EXPECT_THAT(read("a\na\nb\na\n"), ElementsAre(host("a", {0, 1, 2}), host("b", {0})));
  for (const char* text : {"a slots=2\na slots=2\n", "a:2\na:2\n", "a\na slots=2\n", "a:2\na\n"}) {
    EXPECT_THAT(refuse(text), AllOf(HasSubstr(":2: 'a"), HasSubstr("line 1"))) << text;
  }
}

TEST_F(Hostfile, BadLinesAreNamedWithFileLineAndText) {
  for (const char* line :
       {"h2 lots=2",
        "slots=2",
        "h3 slots=x",
        "h3 slots=-1",
        "h3 slots=0",
        "h3 slots=",
        "h3:x",
        "h3:",
        "h3:0",
        ":4",
        "h3 4",
        "h3 slots=2 slots=2",
        "h3:2 slots=2",
        "h3 slots=4 max_slots=2",
        "h3 slots=99999999999",
        "h3 slots=70000",
        "-n slots=2",
        "h/3",
        "h1,h2",
        "h3 = 2"}) {
    EXPECT_THAT(
        refuse("# first\nh1 slots=2\n" + std::string(line) + "\r\nh9\n"),
        AllOf(HasSubstr(path().string() + ":3: '" + line + "'"), HasSubstr("host slots=4")))
        << line;
  }
}

TEST_F(Hostfile, MissingOrEmptyIsAnError) {
  EXPECT_THAT(refusal([&] { read_hostfile(folder_ / "absent"); }), HasSubstr("absent"));
  EXPECT_THAT(refuse("# nothing\n\n"), HasSubstr("names no host"));
}

const std::vector<HostSlots> kPool = {host("w0", {0, 1, 2, 3}), host("w1", {0, 1, 2, 3})};

TEST(HostFilters, Include) {
  EXPECT_THAT(include_hosts(kPool, "w0"), ElementsAre(host("w0", {0, 1, 2, 3})));
  EXPECT_THAT(
      include_hosts(kPool, "w0@w1:0,2"), ElementsAre(host("w0", {0, 1, 2, 3}), host("w1", {0, 2})));
  EXPECT_THAT(
      include_hosts(kPool, "w1:3,0@w0:1"), ElementsAre(host("w0", {1}), host("w1", {0, 3})));
}

TEST(HostFilters, Exclude) {
  EXPECT_THAT(
      exclude_hosts(kPool, "w1:1"), ElementsAre(host("w0", {0, 1, 2, 3}), host("w1", {0, 2, 3})));
  EXPECT_THAT(exclude_hosts(kPool, "w0"), ElementsAre(host("w1", {0, 1, 2, 3})));
  EXPECT_THAT(exclude_hosts(kPool, "w0:0,1,2,3"), ElementsAre(host("w1", {0, 1, 2, 3})));
  EXPECT_THAT(refusal([] { exclude_hosts(kPool, "w0@w1"); }), HasSubstr("no slot of any host"));
}

TEST(HostFilters, WhatIsNotThereIsNamed) {
  EXPECT_THAT(
      refusal([] { include_hosts(kPool, "w2"); }), AllOf(HasSubstr("'w2'"), HasSubstr("w0, w1")));
  EXPECT_THAT(
      refusal([] { include_hosts(kPool, "w0:9"); }),
      AllOf(HasSubstr("'9'"), HasSubstr("0, 1, 2, 3")));
  for (const char* filter :
       {"",
        "@",
        "w0@",
        "w0:",
        "w0:x",
        "w0:-1",
        "w0:0,0",
        "w0@w0:1",
        "w0:0@w0:1",
        "w0:9",
        "w0 @w1"}) {
    EXPECT_THAT(refusal([&] { include_hosts(kPool, filter); }), HasSubstr("--include")) << filter;
    EXPECT_THAT(refusal([&] { exclude_hosts(kPool, filter); }), HasSubstr("--exclude")) << filter;
  }
}

} // namespace
} // namespace palimpsest
