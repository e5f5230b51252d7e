#include <palimpsest/core/data/chat/jinja_process.h>

#include <palimpsest/core/base/error.h>
#include <palimpsest/tests/core/data/temporary_folder.h>
#include <palimpsest/tests/support/python/python.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>
#include <thread>

namespace palimpsest {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

using JinjaProcessTest = NeedsJinja;

const Conversation kHello = {{"user", "Hello \"x\"\n\xe2\x80\xa8"}};

std::string render(JinjaProcess& jinja, const Conversation& conversation, bool prompt = false) {
  return jinja.render(conversation, {{.messages = conversation.size(), .prompt = prompt}})[0];
}

TEST_F(JinjaProcessTest, HasTheReferencesEnvironment) {
  JinjaProcess jinja(
      "{{ bos_token }}\n"
      "  {% for m in messages %}\n"
      "{{ m.role }}={{ m | tojson }}\n"
      "    {% if loop.first %}{% continue %}{% endif %}\n"
      "second\n"
      "  {% endfor %}\n"
      "{{ add_generation_prompt }} {{ eos_token is defined }} {{ strftime_now('%d %b %Y') }}",
      {.bos = "<s>", .eos = ""});
  EXPECT_EQ(
      render(jinja, {{"user", "<é>"}, {"user", "b"}}),
      "<s>\n"
      "user={\"role\": \"user\", \"content\": \"<é>\"}\n"
      "user={\"role\": \"user\", \"content\": \"b\"}\n"
      "second\n"
      "False False 26 Jul 2024");
}

TEST_F(JinjaProcessTest, KeepsEveryCharacter) {
  JinjaProcess jinja("{{ messages[0].content }}", {});
  EXPECT_EQ(render(jinja, kHello), kHello[0].content);
  EXPECT_EQ(
      render(jinja, {{"user", std::string("a\0\r\n\xf0\x9f\x98\x80", 8)}}),
      std::string("a\0\r\n\xf0\x9f\x98\x80", 8));
  const std::string large(3 << 20, 'x'); // beyond what a socket holds
  EXPECT_EQ(render(jinja, {{"user", large}}), large);
}

TEST_F(JinjaProcessTest, ReportsWhatTheTemplateRefuses) {
  JinjaProcess jinja(
      "{% if messages[0].content == 'bad' %}{{ raise_exception('no bad words') }}{% endif %}ok "
      "{{ messages[0].content.x.y }}",
      {});
  EXPECT_THAT(
      [&] {
        render(jinja, {{"user", "bad"}});
      },
      ThrowsMessage<UserError>(HasSubstr("the chat template refuses it: no bad words")));
  EXPECT_THAT([&] { render(jinja, kHello); }, ThrowsMessage<UserError>(HasSubstr("no attribute")));
  EXPECT_THAT(
      [] { JinjaProcess broken("{% if %}", {}); },
      ThrowsMessage<UserError>(HasSubstr("no valid Jinja template: line 1")));
}

TEST_F(JinjaProcessTest, NamesTheTemplatesFile) {
  JinjaProcess jinja("{{ raise_exception('never') }}", {}, {.file = "own.jinja"});
  EXPECT_THAT(
      [&] { render(jinja, kHello); },
      ThrowsMessage<UserError>(HasSubstr("own.jinja: the chat template refuses it: never")));
  kill(jinja.pid(), SIGKILL);
  EXPECT_THAT(
      [&] { render(jinja, kHello); },
      ThrowsMessage<EnvironmentError>(HasSubstr("own.jinja: the process that renders")));
  EXPECT_THAT(
      [] { JinjaProcess broken("{% if %}", {}, {.file = "own.jinja"}); },
      ThrowsMessage<UserError>(HasSubstr("own.jinja: the chat template is no valid")));
}

// The process lives on: the next conversation may have an end.
TEST_F(JinjaProcessTest, EndsARenderingThatHasNoEnd) {
  JinjaProcess jinja(
      "{{ messages[0].content }}\n"
      "{% if messages[0].content == 'long' %}\n"
      "{% for a in range(100000) %}\n"
      "{% for b in range(100000) %}{% endfor %}\n"
      "{% endfor %}{% endif %}",
      {},
      {.file = "own.jinja", .limit = std::chrono::seconds(1)});
  EXPECT_THAT(
      [&] {
        render(jinja, {{"user", "long"}});
      },
      ThrowsMessage<UserError>(
          HasSubstr("own.jinja:4: the chat template has no end after 1 second; correct it")));
  EXPECT_EQ(render(jinja, {{"user", "short"}}), "short\n");
}

TEST_F(JinjaProcessTest, RefusesAMessageThatIsNoUtf8) {
  JinjaProcess jinja("{{ messages[0].content }}", {});
  EXPECT_THAT(
      [&] {
        render(jinja, {{"user", "a"}, {"user", "ab\xff"}});
      },
      ThrowsMessage<UserError>(HasSubstr("message 2: byte 3 (0xFF) is no UTF-8")));
  EXPECT_EQ(render(jinja, kHello), kHello[0].content);
}

TEST_F(JinjaProcessTest, AnswersCallersFromSeveralThreads) {
  JinjaProcess jinja("{{ messages[0].content }}", {});
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string text = std::to_string(t) + ":" + std::to_string(i);
        EXPECT_EQ(render(jinja, {{"user", text}}), text);
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST_F(JinjaProcessTest, ReportsItsDeathInsteadOfWaiting) {
  JinjaProcess jinja("{{ messages[0].content }}", {});
  kill(jinja.pid(), SIGKILL);
  const auto dead = [&] { render(jinja, kHello); };
  EXPECT_THAT(dead, ThrowsMessage<EnvironmentError>(HasSubstr("was ended by signal 9")));
  EXPECT_THAT(dead, ThrowsMessage<EnvironmentError>(HasSubstr("was ended by signal 9")));
  EXPECT_EQ(jinja.pid(), -1);
}

TEST_F(JinjaProcessTest, LeavesNoProcessBehind) {
  pid_t pid = -1;
  {
    const JinjaProcess jinja("x", {});
    pid = jinja.pid();
    ASSERT_EQ(kill(pid, 0), 0);
  }
  EXPECT_NE(kill(pid, 0), 0);
}

/// A PATH without python3 leaves /usr/bin/python3, which may have jinja2 or not.
TEST(JinjaProcessStart, LooksBesideThePathForPython) {
  const std::string path = getenv("PATH");
  setenv("PATH", "/nowhere", 1);
  try {
    JinjaProcess jinja("{{ messages[0].role }}", {});
    EXPECT_EQ(render(jinja, kHello), "user");
  } catch (const EnvironmentError& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs python3 with jinja2"));
  }
  setenv("PATH", path.c_str(), 1);
}

TEST(JinjaProcessStart, SaysWhatIsMissing) {
  const TemporaryFolder folder;
  folder.write("jinja2.py", std::string("raise ImportError('no jinja2')\n"));
  setenv("PYTHONPATH", folder.path().c_str(), 1);
  EXPECT_THAT(
      [] { const JinjaProcess jinja("x", {}); },
      ThrowsMessage<EnvironmentError>(HasSubstr("apt install python3-jinja2")));
  unsetenv("PYTHONPATH");
}

TEST_F(JinjaProcessTest, PassesOverWhatPythonsOwnStartPrints) {
  const TemporaryFolder folder;
  folder.write("sitecustomize.py", std::string("print('Welcome\\n42')\n"));
  setenv("PYTHONPATH", folder.path().c_str(), 1);
  JinjaProcess jinja("{{ messages[0].role }}", {});
  unsetenv("PYTHONPATH");
  EXPECT_EQ(render(jinja, kHello), "user");
}

} // namespace
} // namespace palimpsest
