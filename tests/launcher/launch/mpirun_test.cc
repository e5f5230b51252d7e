#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/mpirun.h>
#include <palimpsest/tests/support/files/temporary_folder.h>

#include <gmock/gmock.h>

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace palimpsest {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr const char* kOpenMpi4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to ...\n";
constexpr const char* kOpenMpi5 = "mpirun (Open MPI) 5.0.3\n";
constexpr const char* kMpich =
    "HYDRA build details:\n    Version:                                 4.2.1\n";
constexpr const char* kIntel =
    "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)\n";

TEST(Mpirun, IsKnownByWhatItSays) {
  EXPECT_EQ(mpi_kind(kOpenMpi4), MpiKind::kOpenMpi);
  EXPECT_EQ(mpi_kind(kOpenMpi5), MpiKind::kOpenMpi);
  EXPECT_EQ(mpi_kind(kMpich), MpiKind::kHydra);
  EXPECT_EQ(mpi_kind(kIntel), MpiKind::kIntel);
  EXPECT_EQ(mpi_kind("mpirun: unrecognized option"), MpiKind::kNone);
  EXPECT_EQ(mpi_kind(""), MpiKind::kNone);
}

TEST(Mpirun, RanksAreBoundToNothingAndMayBeMany) {
  EXPECT_THAT(
      mpirun_command({MpiKind::kOpenMpi, "/usr/bin/mpirun", ""}, 4, {"/p", "train"}),
      ElementsAre(
          "/usr/bin/mpirun",
          "-n",
          "4",
          "--bind-to",
          "none",
          "--oversubscribe",
          "--allow-run-as-root",
          "--noprefix",
          "/p",
          "train"));
  EXPECT_THAT(
      mpirun_command({MpiKind::kHydra, "m", ""}, 2, {"/p"}),
      ElementsAre("m", "-n", "2", "-bind-to", "none", "/p"));
  EXPECT_THAT(
      mpirun_command({MpiKind::kIntel, "m", ""}, 2, {"/p"}),
      ElementsAre("m", "-n", "2", "-genv", "I_MPI_PIN", "0", "/p"));
  EXPECT_THROW(mpirun_command({}, 2, {"/p"}), UserError);
}

class MpirunInPath : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = make_temporary_folder("mpirun");
  }
  void TearDown() override {
    std::filesystem::remove_all(folder_);
  }
  MpiLauncher found_with(const char* version) {
    const std::filesystem::path file = folder_ / "mpirun";
    std::ofstream(file) << "#!/bin/sh\ncat <<'END'\n" << version << "END\n";
    chmod(file.c_str(), 0755);
    return find_mpirun({{"PATH", "/nonexistent:" + folder_.string() + ":/usr/bin"}});
  }
  std::filesystem::path folder_;
};

TEST_F(MpirunInPath, IsAskedForItsVersion) {
  const MpiLauncher open_mpi = found_with(kOpenMpi4);
  EXPECT_EQ(open_mpi.kind, MpiKind::kOpenMpi);
  EXPECT_EQ(open_mpi.path, (folder_ / "mpirun").string());
  EXPECT_EQ(open_mpi.description, "Open MPI 4.1.4");
  EXPECT_EQ(found_with(kMpich).description, "MPICH (Hydra) 4.2.1");
  EXPECT_EQ(found_with(kIntel).description, "Intel MPI 2021.11");
  EXPECT_EQ(found_with("something else\n").kind, MpiKind::kNone);
}

TEST_F(MpirunInPath, MayBeMissing) {
  const MpiLauncher none = find_mpirun({{"PATH", folder_.string()}});
  EXPECT_EQ(none.kind, MpiKind::kNone);
  EXPECT_THAT(none.description, HasSubstr("no mpirun in PATH"));
  EXPECT_EQ(find_mpirun({}).kind, MpiKind::kNone);
}

} // namespace
} // namespace palimpsest
