#include <palimpsest/launcher/launch/rank_output.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/launch_plan.h>

#include <fcntl.h>
#include <pty.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace palimpsest {
namespace {

constexpr const char* kLogsVariable = "PALIMPSEST_RANK_LOGS";
constexpr const char* kScreenVariables[] = {"PALIMPSEST_SCREEN_OUT", "PALIMPSEST_SCREEN_ERR"};

// A pipe that poll() calls writable takes this much without blocking.
constexpr size_t kPart = 4096;
constexpr size_t kShownBytes = 16384;
constexpr size_t kTailBytes = 8192;
constexpr size_t kTailLines = 10;
constexpr int kScreenMilliseconds = 2000;

FileDescriptor open_log(const std::filesystem::path& path) {
  FileDescriptor file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (file.get() < 0) {
    throw EnvironmentError("cannot write {}: {}", path.string(), std::strerror(errno));
  }
  return file;
}

std::vector<std::string> last_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty() && lines.size() < kTailLines) {
    const size_t end = text.find_last_not_of("\r\n");
    if (end == std::string_view::npos) {
      break;
    }
    text = text.substr(0, end + 1);
    const size_t before = text.find_last_of('\n');
    const size_t start = before == std::string_view::npos ? 0 : before + 1;
    lines.emplace_back(text.substr(start));
    text = text.substr(0, start);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

} // namespace

std::string LineFolder::add(std::string_view bytes) {
  std::string complete;
  for (const char c : bytes) {
    if (c == '\n') {
      complete += line_ + '\n';
      line_.clear();
      returned_ = false;
    } else if (c == '\r') {
      returned_ = true;
    } else {
      if (returned_) {
        line_.clear();
        returned_ = false;
      }
      line_ += c;
    }
  }
  return complete;
}

RankOutput::RankOutput(std::filesystem::path folder, int world_size)
    : folder_(std::move(folder)), channels_{open_channel(1), open_channel(2)} {
  check_writable_folder(folder_);
  for (int rank = 0; rank < world_size; ++rank) {
    std::error_code missing;
    const uintmax_t size = std::filesystem::file_size(log_of(folder_, rank), missing);
    log_starts_.push_back(missing ? 0 : static_cast<int64_t>(size));
  }
  log_ = open_log(log_of(folder_, 0));
}

RankOutput::Channel RankOutput::open_channel(int screen) {
  int fds[2] = {-1, -1};
  std::string path;
  if (isatty(screen) == 1) {
    char name[256];
    if (openpty(&fds[0], &fds[1], name, nullptr, nullptr) != 0) {
      throw EnvironmentError("cannot open a pseudo-terminal: {}", std::strerror(errno));
    }
    termios mode{};
    tcgetattr(fds[1], &mode);
    cfmakeraw(&mode); // the screen itself turns \n into \r\n
    tcsetattr(fds[1], TCSANOW, &mode);
    path = name;
  } else {
    if (pipe(fds) != 0) {
      throw EnvironmentError("cannot open a pipe: {}", std::strerror(errno));
    }
    path = fmt::format("/proc/{}/fd/{}", getpid(), fds[1]);
  }
  for (const int fd : fds) {
    fcntl(fd, F_SETFD, FD_CLOEXEC);
  }
  fcntl(fds[0], F_SETFL, O_NONBLOCK);
  Channel channel{FileDescriptor(fds[0]), FileDescriptor(fds[1]), path, screen, "", {}};
  winsize size{};
  if (ioctl(screen, TIOCGWINSZ, &size) == 0) {
    ioctl(fds[1], TIOCSWINSZ, &size);
  }
  return channel;
}

void RankOutput::tell(Environment& environment) const {
  environment[kLogsVariable] = std::filesystem::absolute(folder_).string();
  for (size_t i = 0; i < channels_.size(); ++i) {
    environment[kScreenVariables[i]] = channels_[i].path;
  }
}

std::vector<pollfd> RankOutput::polled() const {
  std::vector<pollfd> polled;
  for (const Channel& channel : channels_) {
    const bool to_show = !channel.pending.empty();
    polled.push_back(
        {.fd = to_show ? channel.screen : channel.reader.get(),
         .events = static_cast<short>(to_show ? POLLOUT : POLLIN),
         .revents = 0});
  }
  return polled;
}

void RankOutput::serve(const std::vector<pollfd>& polled) {
  for (size_t i = 0; i < channels_.size(); ++i) {
    Channel& channel = channels_[i];
    if (polled[i].revents == 0) {
      continue;
    }
    if (channel.pending.empty()) {
      take(channel);
    } else {
      show(channel);
    }
  }
}

bool RankOutput::take(Channel& channel) {
  char part[kPart];
  const ssize_t count = read(channel.reader.get(), part, sizeof part);
  if (count <= 0) {
    return false;
  }
  const std::string_view text(part, static_cast<size_t>(count));
  log(channel.lines.add(text));
  if (channel.screen >= 0) {
    channel.pending = text;
    shown_ += text;
    if (shown_.size() > 2 * kShownBytes) {
      shown_.erase(0, shown_.size() - kShownBytes);
    }
  }
  return true;
}

void RankOutput::show(Channel& channel) {
  const ssize_t count = write(channel.screen, channel.pending.data(), channel.pending.size());
  if (count >= 0) {
    channel.pending.erase(0, static_cast<size_t>(count));
  } else if (errno != EAGAIN && errno != EINTR) {
    channel.screen = -1; // closed: the log has it all
    channel.pending.clear();
  }
}

void RankOutput::log(const std::string& text) const {
  std::string_view rest = text;
  while (!rest.empty()) {
    const ssize_t count = write(log_.get(), rest.data(), rest.size());
    if (count < 0 && errno != EINTR) {
      return; // a full disk ends no training by itself: the checkpoint's write will say so
    }
    rest.remove_prefix(static_cast<size_t>(std::max<ssize_t>(count, 0)));
  }
}

void RankOutput::drain() {
  for (Channel& channel : channels_) {
    do {
      while (!channel.pending.empty()) {
        pollfd screen = {.fd = channel.screen, .events = POLLOUT, .revents = 0};
        if (poll(&screen, 1, kScreenMilliseconds) == 0) {
          channel.screen = -1;
          channel.pending.clear();
        } else {
          show(channel);
        }
      }
    } while (take(channel));
    if (!channel.lines.rest().empty()) {
      log(channel.lines.add("\n"));
    }
  }
}

void RankOutput::resize() {
  for (const Channel& channel : channels_) {
    winsize size{};
    if (channel.screen >= 0 && ioctl(channel.screen, TIOCGWINSZ, &size) == 0) {
      ioctl(channel.writer.get(), TIOCSWINSZ, &size);
    }
  }
}

std::string RankOutput::tail(int rank) const {
  const std::filesystem::path path = log_of(folder_, rank);
  const FileDescriptor file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) {
    return "";
  }
  const int64_t size = lseek(file.get(), 0, SEEK_END);
  const int64_t from =
      std::max(log_starts_[static_cast<size_t>(rank)], size - static_cast<int64_t>(kTailBytes));
  std::string text(static_cast<size_t>(std::max<int64_t>(0, size - from)), '\0');
  const ssize_t count = pread(file.get(), text.data(), text.size(), from);
  text.resize(static_cast<size_t>(std::max<ssize_t>(0, count)));
  std::string tail;
  for (const std::string& line : last_lines(text)) {
    tail += line + '\n';
  }
  return tail;
}

bool RankOutput::is_on_screen(const std::string& text) const {
  for (const std::string& line : last_lines(text)) {
    if (shown_.find(line) == std::string::npos) {
      return false;
    }
  }
  return true;
}

void redirect_output(const Environment& environment, int rank) {
  const auto logs = environment.find(kLogsVariable);
  if (logs == environment.end()) {
    return;
  }
  const auto redirect = [](int from, const FileDescriptor& to, const std::string& path) {
    if (to.get() < 0 || dup2(to.get(), from) < 0) {
      throw EnvironmentError("cannot open {}: {}", path, std::strerror(errno));
    }
  };
  redirect(0, FileDescriptor(open("/dev/null", O_RDONLY | O_CLOEXEC)), "/dev/null");
  for (int i = 0; i < 2; ++i) {
    const std::string path =
        rank == 0 ? environment.at(kScreenVariables[i]) : log_of(logs->second, rank).string();
    redirect(
        i + 1,
        rank == 0 ? FileDescriptor(open(path.c_str(), O_WRONLY | O_NOCTTY | O_CLOEXEC))
                  : open_log(path),
        path);
  }
}

} // namespace palimpsest
