#include <palimpsest/core/base/host.h>

#include <unistd.h>

#include <array>

namespace palimpsest {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

bool is_loopback(std::string_view address) {
  return address == "localhost" || address == "::1" || address.starts_with("127.");
}

} // namespace palimpsest
