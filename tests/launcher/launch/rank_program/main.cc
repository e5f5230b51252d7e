// A launcher and its ranks, for tests.
//
//   rank_program launch RANKS LOGS [--mpirun] [--grace=S] [--port=P] STEP...
//   rank_program rank STEP...                       what each rank runs
//   rank_program --as-rank rank STEP...             the same under the launcher's mpirun
//   rank_program agent RANKS STEP...                starts ranks as torchrun does, then sleeps
//
// A step is for all ranks, or with "2:" in front for rank 2 alone:
//
//   print=TEXT  error=TEXT  sleep=SECONDS  exit=CODE  signal=NUMBER
//   pid=FOLDER     writes FOLDER/RANK, which holds the process id
//   ignore         ignores all signals that can be
//   child          leaves a sleeping child behind
//   stop=SECONDS   waits for a request to stop, saves for so long, and exits as a stopped run does
//   tell           prints rank, world, local rank, port and whether a terminal is there
//   connect        rank 0 accepts a connection of each other rank at the meeting point

#include <palimpsest/core/base/error.h>
#include <palimpsest/launcher/launch/job.h>
#include <palimpsest/launcher/launch/lifeline.h>
#include <palimpsest/launcher/launch/stop_request.h>
#include <palimpsest/launcher/launch/supervisor.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

namespace palimpsest {
namespace {

using Steps = std::vector<std::string>;

void sleep_for(double seconds) {
  std::this_thread::sleep_for(std::chrono::duration<double>(seconds));
}

void ignore_signals() {
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    std::signal(signal, SIG_IGN); // fails for SIGKILL and SIGSTOP
  }
}

void connect_all(const RankEnvironment& ranks) {
  if (ranks.rank == 0) {
    for (int peer = 1; peer < ranks.world_size; ++peer) {
      const int connection = accept(ranks.listen_fd, nullptr, nullptr);
      int number = -1;
      if (connection < 0 || read(connection, &number, sizeof number) != sizeof number) {
        throw EnvironmentError("no peer at fd {}", ranks.listen_fd);
      }
      std::printf("met rank %d\n", number);
    }
    return;
  }
  const int connection = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(ranks.port));
  inet_pton(AF_INET, ranks.address.c_str(), &address.sin_addr);
  if (connect(connection, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      write(connection, &ranks.rank, sizeof ranks.rank) != sizeof ranks.rank) {
    throw EnvironmentError("cannot reach rank 0 at {}:{}", ranks.address, ranks.port);
  }
}

void stop_when_asked(const StopRequest& stop, double saving) {
  while (!stop.requested()) {
    sleep_for(0.01);
  }
  sleep_for(saving);
  std::printf("saved\n");
  std::exit(kStoppedExitCode);
}

void leave_child() {
  if (fork() == 0) {
    sleep_for(1000);
    _exit(0);
  }
}

void do_step(const std::string& step, const RankEnvironment& ranks, const StopRequest& stop) {
  const size_t equals = step.find('=');
  const std::string name = step.substr(0, equals);
  const std::string value = equals == std::string::npos ? "" : step.substr(equals + 1);
  if (name == "print") {
    std::printf("%s\n", value.c_str());
  } else if (name == "error") {
    std::fprintf(stderr, "%s\n", value.c_str());
  } else if (name == "sleep") {
    sleep_for(std::stod(value));
  } else if (name == "exit") {
    std::exit(std::stoi(value));
  } else if (name == "signal") {
    std::signal(std::stoi(value), SIG_DFL);
    std::raise(std::stoi(value));
  } else if (name == "pid") {
    const std::string file = value + "/" + std::to_string(ranks.rank);
    std::ofstream(file + ".new") << getpid();
    std::rename((file + ".new").c_str(), file.c_str());
  } else if (name == "ignore") {
    ignore_signals();
  } else if (name == "child") {
    leave_child();
  } else if (name == "stop") {
    stop_when_asked(stop, std::stod(value));
  } else if (name == "tell") {
    std::printf(
        "rank %d of %d, local %d of %d, port %d, terminal %d, by %s\n",
        ranks.rank,
        ranks.world_size,
        ranks.local_rank,
        ranks.local_world_size,
        ranks.port,
        isatty(1),
        name_of(ranks.how));
  } else if (name == "connect") {
    connect_all(ranks);
  } else {
    throw UserError("unknown step {}", step);
  }
  std::fflush(stdout);
}

int run_rank(const Steps& steps) {
  const RankEnvironment ranks = detect_rank(current_environment());
  const Lifeline lifeline(launchers_of(ranks));
  const StopRequest stop;
  for (const std::string& step : steps) {
    const size_t colon = step.find(':');
    const bool addressed = colon == 1; // the tests have less than ten ranks
    if (!addressed || step.substr(0, colon) == std::to_string(ranks.rank)) {
      do_step(addressed ? step.substr(colon + 1) : step, ranks, stop);
    }
  }
  return 0;
}

int run_launcher(const std::string& self, const Steps& words) {
  LaunchOptions options;
  options.ranks = std::stoi(words.at(0));
  options.log_folder = words.at(1);
  options.no_mpirun = "not asked for";
  options.command = {self, "rank"};
  options.as_rank = {"--as-rank"};
  for (size_t i = 2; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--mpirun") {
      options.no_mpirun.clear();
    } else if (word.starts_with("--grace=")) {
      options.grace = std::chrono::seconds(std::stoi(word.substr(8)));
    } else if (word.starts_with("--port=")) {
      options.port = std::stoi(word.substr(7));
    } else {
      options.command.push_back(word);
    }
  }
  const Environment environment = current_environment();
  run_job(plan_launch(options, environment), options, environment);
  return 0;
}

int run_agent(const std::string& self, const Steps& words) {
  const int world = std::stoi(words.at(0));
  for (int rank = 0; rank < world; ++rank) {
    if (fork() == 0) {
      setenv("RANK", std::to_string(rank).c_str(), 1);
      setenv("LOCAL_RANK", std::to_string(rank).c_str(), 1);
      setenv("WORLD_SIZE", words[0].c_str(), 1);
      setenv("LOCAL_WORLD_SIZE", words[0].c_str(), 1);
      setenv("MASTER_ADDR", "127.0.0.1", 1);
      setenv("MASTER_PORT", "29500", 1);
      setenv("TORCHELASTIC_RUN_ID", "none", 1);
      std::vector<char*> arguments = {const_cast<char*>(self.c_str()), const_cast<char*>("rank")};
      for (size_t i = 1; i < words.size(); ++i) {
        arguments.push_back(const_cast<char*>(words[i].c_str()));
      }
      arguments.push_back(nullptr);
      execv(self.c_str(), arguments.data());
      _exit(127);
    }
  }
  sleep_for(1000);
  return 0;
}

int run(Steps words) {
  const std::string self = words.at(0);
  words.erase(words.begin());
  if (words.at(0) == "--as-rank") {
    supervise_rank(current_environment());
    words.erase(words.begin());
  }
  const std::string verb = words.at(0);
  words.erase(words.begin());
  return verb == "launch" ? run_launcher(self, words)
      : verb == "agent"   ? run_agent(self, words)
                          : run_rank(words);
}

} // namespace
} // namespace palimpsest

int main(int count, char** arguments) {
  std::signal(SIGPIPE, SIG_IGN);
  try {
    return palimpsest::run({arguments, arguments + count});
  } catch (const palimpsest::Error& error) {
    std::fprintf(stderr, "palimpsest: %s\n", error.what());
    return error.exit_code();
  }
}
