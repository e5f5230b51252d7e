#include <palimpsest/core/data/chat/message.h>

#include <palimpsest/core/base/error.h>

#include <gmock/gmock.h>

namespace palimpsest {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

TEST(Messages, AreUtf8OrNamed) {
  require_utf8(Conversation{});
  require_utf8(Conversation{{"user", "\xc3\xa4"}, {"assistant", "b", "c"}});
  const auto refused = [](const Conversation& conversation, const std::string& words) {
    EXPECT_THAT([&] { require_utf8(conversation); }, ThrowsMessage<UserError>(HasSubstr(words)));
  };
  refused({{"user", "\xc3"}}, "message 1: byte 1 (0xC3) is no UTF-8; convert the text to UTF-8");
  refused({{"user", "a"}, {"\xff", "b"}}, "message 2: byte 1 (0xFF)");
  refused({{"user", "a", "bc\x80"}}, "message 1: byte 3 (0x80)");
}

} // namespace
} // namespace palimpsest
