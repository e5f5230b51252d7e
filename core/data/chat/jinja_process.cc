#include <palimpsest/core/data/chat/jinja_process.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/core/base/words.h>

#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include <fcntl.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;

namespace palimpsest {

namespace {

constexpr std::chrono::seconds kToEndItself = std::chrono::seconds(10); // when the time is up

constexpr const char* kScript = R"python(
import datetime, json, signal, sys

def answer(value):
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()

try:
    import jinja2, jinja2.ext, jinja2.sandbox
except ImportError as error:
    answer({"missing": str(error)})
    sys.exit()
answer({})

class Generation(jinja2.ext.Extension):
    tags = {"generation"}
    def parse(self, parser):
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)

class Late(Exception):
    pass

def time_is_up(*_):
    raise Late()

signal.signal(signal.SIGALRM, time_is_up)

def last_line(trace):  # of the template, whose frames jinja2 gives its own lines
    line = 0
    while trace:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return line

def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)

def to_json(value, indent=None, ensure_ascii=False, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols])
environment.filters["tojson"] = to_json
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = datetime.datetime(2024, 7, 26).strftime

template, tokens, limit = None, {}, 0
for line in open(0, encoding="utf-8", closefd=False):
    try:
        request = json.loads(line)
        if template is None:
            template = environment.from_string(request["template"])
            tokens, limit = request["tokens"], request["limit"]
            answer({})
        else:
            messages = request["messages"]
            signal.alarm(limit)
            try:
                texts = [
                    template.render(messages=messages[:count], add_generation_prompt=prompt, tools=None, documents=None, **tokens)
                    for count, prompt in request["renders"]]
            finally:
                signal.alarm(0)
            answer({"texts": texts})
    except Late as late:
        answer({"late": last_line(late.__traceback__)})
    except jinja2.TemplateSyntaxError as error:
        answer({"error": f"line {error.lineno}: {error.message}"})
    except Exception as error:
        answer({"error": str(error) or type(error).__name__})
)python";

class SpawnActions {
 public:
  SpawnActions(int socket, int errors) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, socket, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, socket, STDOUT_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, errors, STDERR_FILENO);
    posix_spawnattr_init(&attributes_);
    // A group of its own: the terminal's interrupt is for the program, which ends the helper itself.
    posix_spawnattr_setflags(&attributes_, POSIX_SPAWN_SETPGROUP);
  }
  SpawnActions(const SpawnActions&) = delete;
  ~SpawnActions() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  bool spawn(const std::string& interpreter, pid_t& pid) const {
    std::array<const char*, 4> arguments = {interpreter.c_str(), "-c", kScript, nullptr};
    return posix_spawnp(
               &pid,
               interpreter.c_str(),
               &actions_,
               &attributes_,
               const_cast<char* const*>(arguments.data()),
               environ) == 0;
  }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

std::string system_words() {
  return std::strerror(errno); // NOLINT(concurrency-mt-unsafe): glibc's is safe
}

} // namespace

JinjaProcess::JinjaProcess(
    const std::string& source,
    const TemplateTokens& tokens,
    JinjaOptions options)
    : options_(std::move(options)) {
  if (!start("python3") && !start("/usr/bin/python3")) {
    throw EnvironmentError(
        "the chat template is written in Jinja, which needs python3 with jinja2; install it (apt "
        "install python3-jinja2, or pip install jinja2), or name a template in data.chat_template, "
        "such as chatml");
  }
  nlohmann::ordered_json request = {
      {"template", source},
      {"tokens", nlohmann::ordered_json::object()},
      {"limit", options_.limit.count()}};
  if (!tokens.bos.empty()) {
    request["tokens"]["bos_token"] = tokens.bos;
  }
  if (!tokens.eos.empty()) {
    request["tokens"]["eos_token"] = tokens.eos;
  }
  const nlohmann::json reply = exchange(request);
  if (reply.contains("error")) {
    throw UserError(
        "{}the chat template is no valid Jinja template: {}",
        place(),
        reply["error"].get<std::string>());
  }
}

std::string JinjaProcess::place(int64_t line) const {
  if (options_.file.empty()) {
    return "";
  }
  return options_.file.string() + (line > 0 ? fmt::format(":{}: ", line) : ": ");
}

bool JinjaProcess::start(const std::string& interpreter) {
  child_.emplace();
  Child& child = *child_;
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) {
    throw EnvironmentError("cannot talk to a process for the chat template: {}", system_words());
  }
  child.socket = FileDescriptor(ends[0]);
  const FileDescriptor theirs(ends[1]);
  const timeval limit{.tv_sec = (options_.limit + kToEndItself).count(), .tv_usec = 0};
  setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
  setsockopt(ends[0], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
  child.errors = FileDescriptor(memfd_create("chat_template_errors", MFD_CLOEXEC));
  if (child.errors.get() < 0) {
    throw EnvironmentError("cannot start a process for the chat template: {}", system_words());
  }
  if (!SpawnActions(theirs.get(), child.errors.get()).spawn(interpreter, child.pid)) {
    return false;
  }
  while (const auto line = receive_line()) {
    const auto greeting = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
    if (greeting.is_object()) { // before it stands what Python's own start may print
      return !greeting.contains("missing");
    }
  }
  return false;
}

JinjaProcess::Child::~Child() {
  if (pid > 0) {
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
  }
}

/// Nothing where the process has ended or gives no answer.
std::optional<std::string> JinjaProcess::receive_line() {
  std::string& received = child_->received;
  size_t end = received.find('\n');
  while (end == received.npos) {
    std::array<char, 65536> part{};
    const ssize_t size = recv(child_->socket.get(), part.data(), part.size(), 0);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size <= 0) {
      return std::nullopt;
    }
    const size_t searched = received.size();
    received.append(part.data(), static_cast<size_t>(size));
    end = received.find('\n', searched);
  }
  std::string line = received.substr(0, end);
  received.erase(0, end + 1);
  return line;
}

bool JinjaProcess::send_line(std::string_view line) {
  while (!line.empty()) {
    const ssize_t size = send(child_->socket.get(), line.data(), line.size(), MSG_NOSIGNAL);
    if (size < 0 && errno == EINTR) {
      continue;
    }
    if (size <= 0) {
      return false;
    }
    line.remove_prefix(static_cast<size_t>(size));
  }
  return true;
}

nlohmann::json JinjaProcess::exchange(const nlohmann::ordered_json& request) {
  if (child_) {
    if (send_line(request.dump(-1, ' ', true) + "\n")) {
      if (const auto line = receive_line()) {
        return nlohmann::json::parse(*line);
      }
    }
    last_words_ = child_->end();
    child_.reset();
  }
  throw EnvironmentError("{}the process that renders the chat template {}", place(), last_words_);
}

/// How the process ended, or that it had to be ended.
std::string JinjaProcess::Child::end() {
  int status = 0;
  // It closes the socket a moment before it has ended.
  constexpr int kTries = 100;
  pid_t ended = 0;
  for (int i = 0; i < kTries && ended == 0; ++i) {
    ended = waitpid(pid, &status, WNOHANG);
    if (ended == 0) {
      usleep(10'000);
    }
  }
  if (ended == 0) {
    return "gave no answer in time and was ended; correct the template, or give another one";
  }
  pid = -1;
  std::string words = WIFSIGNALED(status)
      ? fmt::format("was ended by signal {}", WTERMSIG(status))
      : fmt::format("ended with exit code {}", WEXITSTATUS(status));
  std::array<char, 2000> text{};
  const off_t size = lseek(errors.get(), 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - std::ssize(text));
  if (const ssize_t read = pread(errors.get(), text.data(), text.size(), from); read > 0) {
    words += "\n" + std::string(text.data(), static_cast<size_t>(read));
  }
  return words;
}

std::vector<std::string> JinjaProcess::render(
    const Conversation& conversation,
    const std::vector<Request>& requests) {
  nlohmann::ordered_json request = {// a template may write a message's keys as they come
                                    {"messages", nlohmann::ordered_json::array()},
                                    {"renders", nlohmann::ordered_json::array()}};
  require_utf8(conversation);
  for (const Message& message : conversation) {
    request["messages"].push_back({{"role", message.role}, {"content", whole_content(message)}});
  }
  for (const Request& wanted : requests) {
    request["renders"].push_back({wanted.messages, wanted.prompt});
  }
  const std::lock_guard lock(mutex_);
  const nlohmann::json reply = exchange(request);
  if (reply.contains("late")) {
    throw UserError(
        "{}the chat template has no end after {}; correct it, or give another one",
        place(reply["late"].get<int64_t>()),
        counted(options_.limit.count(), "second"));
  }
  if (reply.contains("error")) {
    throw UserError(
        "{}the chat template refuses it: {}", place(), reply["error"].get<std::string>());
  }
  return reply.at("texts").get<std::vector<std::string>>();
}

} // namespace palimpsest
