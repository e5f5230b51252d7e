#include <palimpsest/launcher/launch/mpirun.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/threads.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <memory>

namespace palimpsest {
namespace {

std::string find_program(const Environment& environment, const std::string& name) {
  const auto path = environment.find("PATH");
  std::string_view folders = path == environment.end() ? "" : std::string_view(path->second);
  while (!folders.empty()) {
    const size_t colon = folders.find(':');
    const std::string file = std::string(folders.substr(0, colon)) + "/" + name;
    if (access(file.c_str(), X_OK) == 0) {
      return file;
    }
    folders.remove_prefix(colon == std::string_view::npos ? folders.size() : colon + 1);
  }
  return "";
}

std::string output_of(const std::vector<std::string>& command) {
  const std::string line = shell_line(command) + " 2>&1 </dev/null";
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(popen(line.c_str(), "r"), pclose);
  std::string text;
  std::array<char, 4096> part;
  while (pipe != nullptr) {
    const size_t count = fread(part.data(), 1, part.size(), pipe.get());
    text.append(part.data(), count);
    if (count == 0) {
      break;
    }
  }
  return text;
}

/// The first word of digits and dots: a version.
std::string version_in(std::string_view text) {
  const size_t start = text.find_first_of("0123456789");
  if (start == std::string_view::npos) {
    return "of unknown version";
  }
  return std::string(text.substr(start, text.find_first_not_of("0123456789.", start) - start));
}

} // namespace

MpiKind mpi_kind(std::string_view version_text) {
  constexpr std::pair<const char*, MpiKind> kMarks[] = {
      {"Open MPI", MpiKind::kOpenMpi},
      {"OpenRTE", MpiKind::kOpenMpi},
      {"Intel(R) MPI", MpiKind::kIntel},
      {"HYDRA", MpiKind::kHydra}};
  for (const auto& [mark, kind] : kMarks) {
    if (version_text.find(mark) != std::string_view::npos) {
      return kind;
    }
  }
  return MpiKind::kNone;
}

MpiLauncher find_mpirun(const Environment& environment) {
  MpiLauncher mpirun;
  mpirun.path = find_program(environment, "mpirun");
  if (mpirun.path.empty()) {
    mpirun.description = "no mpirun in PATH";
    return mpirun;
  }
  const std::string text = output_of({mpirun.path, "--version"});
  mpirun.kind = mpi_kind(text);
  constexpr const char* kNames[] = {"", "Open MPI ", "MPICH (Hydra) ", "Intel MPI "};
  mpirun.description = mpirun.kind == MpiKind::kNone
      ? mpirun.path + " is of no MPI that is known here"
      : kNames[static_cast<size_t>(mpirun.kind)] + version_in(text);
  return mpirun;
}

std::vector<std::string> mpirun_command(
    const MpiLauncher& mpirun,
    int ranks,
    const std::vector<std::string>& command) {
  std::vector<std::string> line = {mpirun.path, "-n", std::to_string(ranks)};
  const auto add = [&line](std::initializer_list<const char*> options) {
    line.insert(line.end(), options.begin(), options.end());
  };
  switch (mpirun.kind) {
    case MpiKind::kOpenMpi:
      // Called by its whole path it would put its own folder before the ranks' PATH.
      add({"--bind-to", "none", "--oversubscribe", "--allow-run-as-root", "--noprefix"});
      break;
    case MpiKind::kHydra:
      add({"-bind-to", "none"});
      break;
    case MpiKind::kIntel:
      add({"-genv", "I_MPI_PIN", "0"});
      break;
    case MpiKind::kNone:
      throw UserError("cannot start ranks with mpirun: {}", mpirun.description);
  }
  line.insert(line.end(), command.begin(), command.end());
  return line;
}

} // namespace palimpsest
